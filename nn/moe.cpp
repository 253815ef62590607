// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens, H hidden size, E experts, K experts per token, R = T * K rows by expert.
#include "nn/moe.h"

#include "ops/copies.h"
#include "ops/views.h"

namespace moegrad::nn {
namespace {

// The weight of each row, [R].
Tensor row_weights(const MoE::Routing& routing) {
  const Tensor& weights = routing.router.weights;  // [T, K], by slot
  return ops::index_select(ops::reshape(weights, {weights.numel()}), routing.plan.slot_of_row);
}

}  // namespace

MoE::MoE(const Config& config)
    : gate_({.hidden_size = config.hidden_size,
             .num_experts = config.num_experts,
             .top_k = config.top_k,
             .normalize = config.norm_topk_prob,
             .dtype = config.dtype}),
      experts_({.hidden_size = config.hidden_size,
                .intermediate_size = config.intermediate_size,
                .num_experts = config.num_experts,
                .weights = config.expert_weights,
                .dtype = config.dtype}),
      num_experts_(config.num_experts) {
  register_module("gate", gate_);
  register_module("experts", experts_);
}

MoE::Output MoE::forward(const Tensor& x, const Tensor& replay_indices) {  // [T, H]
  const Routing routing = route(x, replay_indices);
  const Tensor rows = experts(dispatch(x, routing), routing);  // [R, H]
  return {.hidden = combine(rows, routing),                    // [T, H]
          .router_logits = routing.router.logits,
          .routing_weights = routing.router.weights,
          .expert_indices = routing.router.indices,
          .tokens_per_expert = routing.plan.counts};
}

MoE::Routing MoE::route(const Tensor& x, const Tensor& replay_indices) {
  const auto router = gate_(x, replay_indices);
  return {.router = router, .plan = ops::plan_routing(router.indices, num_experts_)};
}

Tensor MoE::dispatch(const Tensor& x, const Routing& routing) {
  return ops::permute_rows(x, routing.plan);
}

Tensor MoE::experts(const Tensor& rows, const Routing& routing) {
  return experts_(rows, row_weights(routing), routing.plan);
}

Tensor MoE::combine(const Tensor& rows, const Routing& routing) {
  return ops::unpermute_rows(rows, routing.plan);
}

void for_each_tensor(MoE::Output& output, const TensorVisitor& visit) {
  visit_tensors(visit, output.hidden, output.router_logits, output.routing_weights,
                output.expert_indices);
}

}  // namespace moegrad::nn
