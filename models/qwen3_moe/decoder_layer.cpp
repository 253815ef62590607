// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens, H hidden size, E experts, K experts per token, R = T * K rows.
#include "models/qwen3_moe/decoder_layer.h"

#include <memory>
#include <utility>

#include "framework/runtime/error.h"
#include "nn/mlp.h"
#include "ops/elementwise.h"

namespace moegrad::models {

Qwen3MoeDecoderLayer::Qwen3MoeDecoderLayer(const Qwen3MoeConfig& config, std::int64_t layer)
    : input_layernorm_(
          {.dim = config.hidden_size, .eps = config.rms_norm_eps, .dtype = config.dtype}),
      self_attn_(std::make_shared<nn::Attention>(
          nn::Attention::Config{.hidden_size = config.hidden_size,
                                .num_heads = config.num_attention_heads,
                                .num_key_value_heads = config.num_key_value_heads,
                                .head_dim = config.head_dim,
                                .rms_norm_eps = config.rms_norm_eps,
                                .dtype = config.dtype})),
      post_attention_layernorm_(
          {.dim = config.hidden_size, .eps = config.rms_norm_eps, .dtype = config.dtype}) {
  register_module("self_attn", self_attn_);
  if (config.is_moe_layer(layer)) {
    moe_.emplace(nn::MoE::Config{.hidden_size = config.hidden_size,
                                 .intermediate_size = config.moe_intermediate_size,
                                 .num_experts = config.num_experts,
                                 .top_k = config.num_experts_per_tok,
                                 .norm_topk_prob = config.norm_topk_prob,
                                 .expert_weights = config.expert_weights,
                                 .dtype = config.dtype});
    register_module("mlp", *moe_, mlp_, [this] { moe_.reset(); });
  } else {
    mlp_ = std::make_shared<nn::MLP>(nn::MLP::Config{.hidden_size = config.hidden_size,
                                                     .intermediate_size = config.intermediate_size,
                                                     .dtype = config.dtype});
    register_module("mlp", mlp_);
  }
  register_module("input_layernorm", input_layernorm_);
  register_module("post_attention_layernorm", post_attention_layernorm_);
}

Qwen3MoeDecoderLayer::Output Qwen3MoeDecoderLayer::forward(const Tensor& hidden,  // [T, H]
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

nn::RMSNorm::Added Qwen3MoeDecoderLayer::add_attention(const Tensor& hidden,
                                                       const nn::SequenceContext& context) {
  const Tensor attention = self_attn_(input_layernorm_(hidden), context);
  return post_attention_layernorm_.call_method(&nn::RMSNorm::add, hidden, attention);
}

nn::MoE& Qwen3MoeDecoderLayer::mixture() {
  check(is_moe(), "Qwen3MoeDecoderLayer: nodes need a mixture layer, got a dense one");
  return *moe_;
}

Qwen3MoeDecoderLayer::Attended Qwen3MoeDecoderLayer::attend(const Tensor& hidden,
                                                            const nn::SequenceContext& context,
                                                            const Tensor& replay_indices) {
  auto& moe = mixture();
  const auto [attended, normed] = add_attention(hidden, context);
  return {.hidden = attended,
          .normed = normed,
          .routed = moe.call_method(&nn::MoE::route, normed, replay_indices)};
}

nn::DispatchedRows Qwen3MoeDecoderLayer::dispatch(const Attended& attended) {
  return mixture().call_method(&nn::MoE::dispatch, attended.normed, attended.routed);
}

Tensor Qwen3MoeDecoderLayer::experts(const nn::DispatchedRows& dispatched) {
  return mixture().call_method(&nn::MoE::experts, dispatched);
}

Qwen3MoeDecoderLayer::Output Qwen3MoeDecoderLayer::combine(const Tensor& rows,
                                                           const nn::DispatchedRows& dispatched,
                                                           const Attended& attended) {
  const Tensor combined = mixture().call_method(&nn::MoE::combine, rows, dispatched);  // [T, H]
  return {.hidden = attended.hidden + combined,
          .router_logits = attended.routed.logits,
          .routing_weights = attended.routed.weights,
          .expert_indices = attended.routed.indices,
          .tokens_per_expert = dispatched.tokens_per_expert};
}

void for_each_tensor(Qwen3MoeDecoderLayer::Output& output, const nn::TensorVisitor& visit) {
  nn::visit_tensors(visit, output.hidden, output.router_logits, output.routing_weights,
                    output.expert_indices);
}

void for_each_tensor(Qwen3MoeDecoderLayer::Attended& attended, const nn::TensorVisitor& visit) {
  nn::visit_tensors(visit, attended.hidden, attended.normed, attended.routed);
}

}  // namespace moegrad::models
