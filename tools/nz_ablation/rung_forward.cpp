// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens, H hidden size, R rows by expert, I intermediate size of one expert.
#include "tools/nz_ablation/rung_forward.h"

#include <algorithm>
#include <string>

#include "framework/autograd/weight_use.h"
#include "nn/embedding.h"
#include "nn/linear.h"
#include "nn/rms_norm.h"
#include "ops/rope.h"
#include "ops/swiglu.h"
#include "ops/views.h"

namespace moegrad::tools {
namespace {

using models::CausalLM;
using models::DecoderLayer;

// The stacked weights that play `role` below `module`.
Tensor weights_of(const nn::Module& module, nn::ParameterLayout::Role role) {
  const auto slots = module.parameter_slots();
  const auto slot = std::ranges::find(
      slots, role, [](const nn::ParameterSlot& each) { return each.layout.role; });
  check(slot != slots.end(), "nz_ablation: a mixture layer needs expert weights");
  return ops::view(*slot->tensor, slot->layout.stacked);
}

// What nn::GroupedExperts computes.
Tensor run_experts(const nn::Module& module, const ExpertProduct& product,
                   const nn::DispatchedRows& dispatched) {
  using Role = nn::ParameterLayout::Role;
  const auto& [rows, weights, groups, counts, metadata] = dispatched;
  const Tensor gate_up = product(rows, weights_of(module, Role::kExpertGateUp), groups);
  const Tensor hidden = ops::swiglu(gate_up, weights);                    // [R, I]
  return product(hidden, weights_of(module, Role::kExpertDown), groups);  // [R, H]
}

template <class M>
M& child(CausalLM& model, const std::string& path) {
  for (const auto& [name, module] : model.named_modules()) {
    if (name == path) return dynamic_cast<M&>(*module);
  }
  throw Error("nz_ablation: the model has no module '" + path + "'");
}

}  // namespace

CausalLM::Output run_forward(CausalLM& model, const Rung& rung, const Tensor& tokens,
                             const Documents& documents) {
  if (!rung.product) return model(tokens, documents);
  const auto run_layer = [&](DecoderLayer& layer, const Tensor& hidden,
                             const nn::SequenceContext& context) {
    const auto attended = layer.attend(hidden, context, {});
    const auto dispatched = layer.dispatch(attended);
    return layer.combine(run_experts(layer, rung.product, dispatched), dispatched, attended);
  };
  const auto run_model = [&](CausalLM& whole, const Tensor& ids) {
    const auto& config = whole.config();
    const nn::SequenceContext context = {
        .documents = documents,
        .rope = ops::rope_table(documents.positions(), config.head_dim, config.rope_theta,
                                config.dtype)};
    CausalLM::Output output;
    Tensor hidden = child<nn::Embedding>(whole, "model.embed_tokens")(ids);  // [T, H]
    for (auto& layer : whole.layers()) {
      const auto result = layer.call_method(run_layer, hidden, context);
      hidden = result.hidden;
      output.router_logits.push_back(result.router_logits);
      output.expert_indices.push_back(result.expert_indices);
      output.tokens_per_expert.push_back(result.tokens_per_expert);
    }
    const Tensor normed = child<nn::RMSNorm>(whole, "model.norm")(hidden);
    const WeightUseGuard use(config.tie_word_embeddings ? 1 : 0);
    output.logits = child<nn::Linear>(whole, "lm_head")(normed);
    return output;
  };
  return model.call_method(run_model, tokens);
}

nn::MoE::Output run_forward(nn::MoE& moe, const Rung& rung, const Tensor& x) {
  if (!rung.product) return moe(x);
  const auto run_nodes = [&](nn::MoE& layer, const Tensor& input) {
    const auto routed = layer.route(input);
    const auto dispatched = layer.dispatch(input, routed);
    return nn::MoE::Output{
        .hidden = layer.combine(run_experts(layer, rung.product, dispatched), dispatched),
        .router_logits = routed.logits,
        .routing_weights = routed.weights,
        .expert_indices = routed.indices,
        .tokens_per_expert = dispatched.tokens_per_expert};
  };
  return moe.call_method(run_nodes, x);
}

}  // namespace moegrad::tools
