// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens, H hidden size, E experts, K experts per token, R = T * K rows by expert.
#include "nn/moe.h"

#include <memory>
#include <string_view>
#include <utility>

#include "framework/runtime/error.h"
#include "nn/linear.h"
#include "nn/mlp.h"
#include "ops/copies.h"
#include "ops/elementwise.h"
#include "ops/views.h"

namespace moegrad::nn {

namespace {

void check_order(bool in_order, std::string_view node, std::string_view before) {
  check(in_order, "MoE: nodes must be called in the order route, dispatch, experts, combine; got ",
        node, " without the result of ", before);
}

}  // namespace

MoE::MoE(const Config& config)
    : gate_(std::make_shared<Router>(Router::Config{.hidden_size = config.hidden_size,
                                                    .num_experts = config.num_experts,
                                                    .top_k = config.top_k,
                                                    .scores = config.scores,
                                                    .normalize = config.norm_topk_prob,
                                                    .num_groups = config.num_groups,
                                                    .topk_groups = config.topk_groups,
                                                    .scaling_factor = config.routed_scaling_factor,
                                                    .correction_bias = config.correction_bias,
                                                    .dtype = config.dtype})),
      dispatcher_(std::make_shared<LocalTokenDispatcher>(config.num_experts)),
      experts_(std::make_shared<GroupedExperts>(
          GroupedExperts::Config{.hidden_size = config.hidden_size,
                                 .intermediate_size = config.intermediate_size,
                                 .num_experts = config.num_experts,
                                 .weights = config.expert_weights,
                                 .dtype = config.dtype})) {
  register_module("gate", gate_);
  register_module("dispatcher", *dispatcher_);
  register_module("experts", experts_);
  const bool shared = config.shared_intermediate_size != 0;
  check<ValueError>(
      shared || !config.shared_expert_gate,
      "MoE: shared_expert_gate needs a shared expert, got shared_intermediate_size 0");
  if (shared) {
    shared_ =
        std::make_shared<MLP>(MLP::Config{.hidden_size = config.hidden_size,
                                          .intermediate_size = config.shared_intermediate_size,
                                          .dtype = config.dtype});
    register_module(config.shared_expert_gate ? "shared_expert" : "shared_experts", shared_);
  }
  if (config.shared_expert_gate) {
    shared_gate_ = std::make_shared<Linear>(Linear::Config{
        .in_features = config.hidden_size, .out_features = 1, .dtype = config.dtype});
    register_module("shared_expert_gate", shared_gate_);
  }
  register_module("combine", combine_);
}

void MoE::set_dispatcher(std::shared_ptr<TokenDispatcher> dispatcher) {
  check<ValueError>(dispatcher != nullptr, "MoE: must be given a dispatcher, got null");
  replace_module("dispatcher", *dispatcher);
  dispatcher_ = std::move(dispatcher);
}

void MoE::balance(const std::vector<std::int64_t>& tokens_per_expert, double rate) {
  const auto router = gate_.get<Router>();
  check(router != nullptr, "MoE: balance needs a Router as its gate, got another module");
  router->balance(tokens_per_expert, rate);
}

MoE::Output MoE::forward(const Tensor& x, const Tensor& replay_indices) {  // [T, H]
  const auto routed = route(x, replay_indices);
  const Tensor branch = shared_input(x);
  const auto dispatched = dispatch(x, routed);
  const Tensor rows = experts(dispatched);    // [R, H]
  Tensor hidden = combine(rows, dispatched);  // [T, H]
  if (branch.defined()) hidden = hidden + shared(branch);
  return {.hidden = hidden,
          .router_logits = routed.logits,
          .routing_weights = routed.weights,
          .expert_indices = routed.indices,
          .tokens_per_expert = dispatched.tokens_per_expert};
}

Router::Output MoE::route(const Tensor& x, const Tensor& replay_indices) {
  return gate_(x, replay_indices);
}

DispatchedRows MoE::dispatch(const Tensor& x, const Router::Output& routed) {
  check_order(routed.indices.defined() && routed.weights.defined(), "dispatch", "route");
  return (*dispatcher_)(x, routed);
}

Tensor MoE::experts(const DispatchedRows& dispatched) {
  check_order(dispatched.rows.defined() && dispatched.weights.defined(), "experts", "dispatch");
  return experts_(dispatched.rows, dispatched.weights, dispatched.groups);
}

Tensor MoE::combine(const Tensor& rows, const DispatchedRows& dispatched) {
  check_order(dispatched.rows.defined(), "combine", "dispatch");
  check_order(rows.defined(), "combine", "experts");
  Tensor hidden = combine_(*dispatcher_, rows, dispatched);
  check(hidden.defined(), "MoE: the dispatcher's combine must return [T, H], got nothing");
  return hidden;
}

Tensor MoE::shared_input(const Tensor& x) const {
  return has_shared_expert() ? ops::view(ops::contiguous(x), x.shape()) : Tensor();
}

Tensor MoE::shared(const Tensor& branch) {  // [T, H]
  check(has_shared_expert(), "MoE: shared needs a shared expert, got a mixture without one");
  check_order(branch.defined(), "shared", "shared_input");
  const Tensor y = shared_(branch);  // [T, H]
  if (shared_gate_.empty()) return y;
  const Tensor gate = shared_gate_(branch);  // [T, 1]
  return ops::cast(ops::sigmoid(ops::widened(gate)), y.dtype()) * y;
}

void for_each_tensor(MoE::Output& output, const TensorVisitor& visit) {
  visit_tensors(visit, output.hidden, output.router_logits, output.routing_weights,
                output.expert_indices);
}

}  // namespace moegrad::nn
