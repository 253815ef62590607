// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens, H hidden size, K experts per token, R = T * K rows by expert.
#include "nn/token_dispatcher.h"

#include <utility>

#include "framework/runtime/error.h"
#include "ops/copies.h"
#include "ops/indexing.h"
#include "ops/views.h"

namespace moegrad::nn {

void for_each_tensor(DispatchedRows& dispatched, const TensorVisitor& visit) {
  visit_tensors(visit, dispatched.rows, dispatched.weights);
}

DispatchedRows LocalTokenDispatcher::dispatch(const Tensor& x,  // [T, H]
                                              const Router::Output& routed) {
  auto plan = ops::plan_routing(routed.indices, num_experts_);
  const Tensor by_slot = ops::reshape(routed.weights, {routed.weights.numel()});   // [T * K]
  return {.rows = ops::permute_rows(x, plan.permutation),                          // [R, H]
          .weights = ops::index_select(by_slot, 0, plan.permutation.slot_of_row),  // [R]
          .groups = plan.groups,
          .tokens_per_expert = plan.groups.counts,
          .way_back = std::move(plan.permutation)};
}

Tensor LocalTokenDispatcher::combine(const Tensor& rows,  // [R, H]
                                     const DispatchedRows& dispatched) {
  const auto* const permutation = std::any_cast<ops::Permutation>(&dispatched.way_back);
  check(permutation != nullptr,
        "LocalTokenDispatcher: must combine rows that it has dispatched, got those of another");
  return ops::unpermute_rows(rows, *permutation);
}

}  // namespace moegrad::nn
