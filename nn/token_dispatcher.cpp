// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens, H hidden size, K experts per token, R = T * K rows by expert.
#include "nn/token_dispatcher.h"

#include <utility>

#include "ops/copies.h"
#include "ops/indexing.h"
#include "ops/views.h"

namespace moegrad::nn {
namespace {

struct LocalPlan final : DispatchMetadata {
  explicit LocalPlan(ops::RowPlan planned) : plan(std::move(planned)) {}
  ops::RowPlan plan;
};

}  // namespace

void for_each_tensor(DispatchedRows& dispatched, const TensorVisitor& visit) {
  visit_tensors(visit, dispatched.rows, dispatched.weights);
}

DispatchedRows LocalTokenDispatcher::dispatch(const Tensor& x,  // [T, H]
                                              const Router::Output& routed) {
  auto plan = ops::plan_routing(routed.indices, num_experts_, token_parts_);
  const Tensor by_slot = ops::reshape(routed.weights, {routed.weights.numel()});  // [T * K]
  return {.rows = ops::permute_rows(x, plan),                                     // [R, H]
          .weights = ops::index_select(by_slot, 0, plan.slot_of_row),             // [R]
          .groups = plan.received,
          .tokens_per_expert = plan.sent.counts(),
          .metadata = std::make_shared<LocalPlan>(std::move(plan))};
}

Tensor LocalTokenDispatcher::combine(const Tensor& rows,  // [R, H]
                                     const DispatchedRows& dispatched) {
  const auto& plan = metadata_of<LocalPlan>(dispatched, "LocalTokenDispatcher").plan;
  return ops::unpermute_rows(rows, plan);
}

}  // namespace moegrad::nn
