// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "framework/tensor/named_tensor.h"
#include "models/qwen3_moe/config.h"
#include "tests/testing.h"

namespace moegrad::test {

/// Random tensors under the names and with the shapes that Hugging Face's Qwen3MoeForCausalLM has
/// for this configuration, written down independently of the framework's layouts.
inline NamedTensors random_checkpoint(const models::Qwen3MoeConfig& config,
                                      Dtype dtype = Dtype::kFloat32) {
  NamedTensors tensors;
  const auto add = [&](const std::string& name, const Shape& shape) {
    tensors.push_back({name, randn(shape, 100 + tensors.size(), dtype)});
  };
  const auto h = config.hidden_size, d = config.head_dim;
  const auto q = config.num_attention_heads * d, kv = config.num_key_value_heads * d;
  const auto add_mlp = [&](const std::string& prefix, std::int64_t i) {
    add(prefix + "gate_proj.weight", {i, h});
    add(prefix + "up_proj.weight", {i, h});
    add(prefix + "down_proj.weight", {h, i});
  };
  add("model.embed_tokens.weight", {config.vocab_size, h});
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const auto layer = "model.layers." + std::to_string(i) + ".";
    add(layer + "input_layernorm.weight", {h});
    add(layer + "post_attention_layernorm.weight", {h});
    add(layer + "self_attn.q_proj.weight", {q, h});
    add(layer + "self_attn.k_proj.weight", {kv, h});
    add(layer + "self_attn.v_proj.weight", {kv, h});
    add(layer + "self_attn.o_proj.weight", {h, q});
    add(layer + "self_attn.q_norm.weight", {d});
    add(layer + "self_attn.k_norm.weight", {d});
    if (!config.is_moe_layer(i)) {
      add_mlp(layer + "mlp.", config.intermediate_size);
      continue;
    }
    add(layer + "mlp.gate.weight", {config.num_experts, h});
    for (std::int64_t e = 0; e < config.num_experts; ++e) {
      add_mlp(layer + "mlp.experts." + std::to_string(e) + ".", config.moe_intermediate_size);
    }
  }
  add("model.norm.weight", {h});
  if (!config.tie_word_embeddings) add("lm_head.weight", {config.vocab_size, h});
  return tensors;
}

}  // namespace moegrad::test
