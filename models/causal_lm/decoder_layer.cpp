// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens, H hidden size, E experts, K experts per token, R = T * K rows.
#include "models/causal_lm/decoder_layer.h"

#include <memory>
#include <utility>

#include "framework/runtime/error.h"
#include "nn/mlp.h"
#include "ops/elementwise.h"

namespace moegrad::models {

DecoderLayer::DecoderLayer(const CausalLMConfig& config, std::int64_t layer)
    : input_layernorm_(
          {.dim = config.hidden_size, .eps = config.rms_norm_eps, .dtype = config.dtype}),
      self_attn_(std::make_shared<nn::Attention>(
          nn::Attention::Config{.hidden_size = config.hidden_size,
                                .num_heads = config.num_attention_heads,
                                .num_key_value_heads = config.num_key_value_heads,
                                .head_dim = config.head_dim,
                                .qkv_bias = config.qkv_bias,
                                .qk_norm = config.use_qk_norm,
                                .rms_norm_eps = config.rms_norm_eps,
                                .dtype = config.dtype})),
      post_attention_layernorm_(
          {.dim = config.hidden_size, .eps = config.rms_norm_eps, .dtype = config.dtype}) {
  register_module("self_attn", self_attn_);
  if (config.is_moe_layer(layer)) {
    moe_.emplace(config.mixture());
    register_module("mlp", *moe_, mlp_, [this] { moe_.reset(); });
    if (config.router_jitter_noise > 0) {
      register_module("jitter", jitter_.emplace(nn::Jitter::Config{config.router_jitter_noise}));
    }
  } else {
    mlp_ = std::make_shared<nn::MLP>(nn::MLP::Config{.hidden_size = config.hidden_size,
                                                     .intermediate_size = config.intermediate_size,
                                                     .dtype = config.dtype});
    register_module("mlp", mlp_);
  }
  register_module("input_layernorm", input_layernorm_);
  register_module("post_attention_layernorm", post_attention_layernorm_);
}

DecoderLayer::Output DecoderLayer::forward(const Tensor& hidden,  // [T, H]
                                           const nn::SequenceContext& context,
                                           const Tensor& replay_indices) {
  const auto [attended, normed] = add_attention(hidden, context);  // [T, H], [T, H]
  if (!is_moe()) return {.hidden = attended + mlp_(normed)};
  auto output = (*moe_)(normed, replay_indices);
  return {.hidden = attended + output.hidden,  // [T, H]
          .router_logits = output.router_logits,
          .routing_weights = output.routing_weights,
          .expert_indices = output.expert_indices,
          .tokens_per_expert = std::move(output.tokens_per_expert)};
}

nn::RMSNorm::Added DecoderLayer::add_attention(const Tensor& hidden,
                                               const nn::SequenceContext& context) {
  const Tensor attention = self_attn_(input_layernorm_(hidden), context);
  auto [attended, normed] =
      post_attention_layernorm_.call_method(&nn::RMSNorm::add, hidden, attention);
  if (jitter_ && is_moe()) normed = (*jitter_)(normed);
  return {attended, normed};
}

nn::MoE& DecoderLayer::mixture() {
  check(is_moe(), "DecoderLayer: nodes need a mixture layer, got a dense one");
  return *moe_;
}

DecoderLayer::AttentionOutput DecoderLayer::attend(const Tensor& hidden,
                                                   const nn::SequenceContext& context,
                                                   const Tensor& replay_indices) {
  auto& moe = mixture();
  const auto [attended, normed] = add_attention(hidden, context);
  auto routed = moe.call_method(&nn::MoE::route, normed, replay_indices);
  return {.hidden = attended,
          .normed = normed,
          .routed = std::move(routed),
          .shared_input = moe.shared_input(normed)};
}

nn::DispatchedRows DecoderLayer::dispatch(const AttentionOutput& attended) {
  return mixture().call_method(&nn::MoE::dispatch, attended.normed, attended.routed);
}

Tensor DecoderLayer::experts(const nn::DispatchedRows& dispatched) {
  return mixture().call_method(&nn::MoE::experts, dispatched);
}

Tensor DecoderLayer::shared(const AttentionOutput& attended) {
  return mixture().call_method(&nn::MoE::shared, attended.shared_input);
}

DecoderLayer::Output DecoderLayer::combine(const Tensor& rows, const nn::DispatchedRows& dispatched,
                                           const AttentionOutput& attended) {
  Tensor combined = mixture().call_method(&nn::MoE::combine, rows, dispatched);  // [T, H]
  if (has_shared_expert()) {
    combined = combined + (attended.shared.defined() ? attended.shared : shared(attended));
  }
  return {.hidden = attended.hidden + combined,
          .router_logits = attended.routed.logits,
          .routing_weights = attended.routed.weights,
          .expert_indices = attended.routed.indices,
          .tokens_per_expert = dispatched.tokens_per_expert};
}

void DecoderLayer::balance(const std::vector<std::int64_t>& tokens_per_expert, double rate) {
  mixture().balance(tokens_per_expert, rate);
}

void for_each_tensor(DecoderLayer::Output& output, const nn::TensorVisitor& visit) {
  nn::visit_tensors(visit, output.hidden, output.router_logits, output.routing_weights,
                    output.expert_indices);
}

void for_each_tensor(DecoderLayer::AttentionOutput& attended, const nn::TensorVisitor& visit) {
  nn::visit_tensors(visit, attended.hidden, attended.normed, attended.routed, attended.shared_input,
                    attended.shared);
}

}  // namespace moegrad::models
