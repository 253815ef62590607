// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "framework/tensor/named_tensor.h"
#include "models/causal_lm/config.h"
#include "tests/testing.h"

namespace moegrad::test {

/// Random tensors under the names and with the shapes that Hugging Face's files have for this
/// configuration, written down independently of the framework's layouts.
inline NamedTensors random_checkpoint(const models::CausalLMConfig& config,
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
  const bool mixtral = config.model_type == models::ModelType::kMixtral;
  const auto add_mixture = [&](const std::string& layer) {
    const auto inner = config.moe_intermediate_size;
    const auto mixture = layer + (mixtral ? "block_sparse_moe." : "mlp.");
    add(mixture + "gate.weight", {config.num_experts, h});
    for (std::int64_t e = 0; e < config.num_experts; ++e) {
      const auto expert = mixture + "experts." + std::to_string(e) + ".";
      if (!mixtral) {
        add_mlp(expert, inner);
        continue;
      }
      add(expert + "w1.weight", {inner, h});
      add(expert + "w3.weight", {inner, h});
      add(expert + "w2.weight", {h, inner});
    }
    if (config.n_shared_experts > 0) {
      add_mlp(mixture + "shared_experts.", config.n_shared_experts * inner);
    }
    if (config.shared_expert_intermediate_size > 0) {
      add_mlp(mixture + "shared_expert.", config.shared_expert_intermediate_size);
      add(mixture + "shared_expert_gate.weight", {1, h});
    }
  };
  add("model.embed_tokens.weight", {config.vocab_size, h});
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const auto layer = "model.layers." + std::to_string(i) + ".";
    add(layer + "input_layernorm.weight", {h});
    add(layer + "post_attention_layernorm.weight", {h});
    for (const auto& [name, heads] : {std::pair{"q", q}, {"k", kv}, {"v", kv}}) {
      const auto projection = layer + "self_attn." + name + "_proj.";
      add(projection + "weight", {heads, h});
      if (config.qkv_bias) add(projection + "bias", {heads});
    }
    add(layer + "self_attn.o_proj.weight", {h, q});
    if (config.use_qk_norm) {
      add(layer + "self_attn.q_norm.weight", {d});
      add(layer + "self_attn.k_norm.weight", {d});
    }
    if (config.is_moe_layer(i)) {
      add_mixture(layer);
    } else {
      add_mlp(layer + "mlp.", config.intermediate_size);
    }
  }
  add("model.norm.weight", {h});
  if (!config.tie_word_embeddings) add("lm_head.weight", {config.vocab_size, h});
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
    if (!config.correction_bias || !config.is_moe_layer(i)) continue;
    const auto layer = "model.layers." + std::to_string(i);
    tensors.push_back(
        {layer + ".mlp.gate.e_score_correction_bias",
         randn({config.num_experts}, 900 + static_cast<std::uint64_t>(i), Dtype::kFloat32)});
  }
  return tensors;
}

}  // namespace moegrad::test
