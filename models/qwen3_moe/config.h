// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "framework/tensor/documents.h"
#include "framework/tensor/dtype.h"
#include "framework/tensor/layout.h"
#include "nn/experts.h"

namespace moegrad::models {

/// A Qwen3-MoE model: the keys of Hugging Face's config.json, with the defaults of its
/// Qwen3MoeConfig class, then the fields that this framework adds. Without experts (num_experts =
/// 0) every layer is dense: that is Hugging Face's Qwen3.
struct Qwen3MoeConfig {
  std::int64_t vocab_size = 151936;
  std::int64_t hidden_size = 2048;
  std::int64_t intermediate_size = 6144;  // in dense layers
  std::int64_t num_hidden_layers = 24;
  std::int64_t num_attention_heads = 32;
  std::int64_t num_key_value_heads = 4;
  std::int64_t head_dim = 64;  // config.json: hidden_size / num_attention_heads when absent
  std::int64_t max_position_embeddings = 32768;  // the model takes more; train_qwen3_moe does not
  double initializer_range = 0.02;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  bool tie_word_embeddings = false;

  std::int64_t decoder_sparse_step = 1;
  std::vector<std::int64_t> mlp_only_layers = {};
  std::int64_t moe_intermediate_size = 768;
  std::int64_t num_experts = 128;  // 0: a dense decoder; the other keys of mixtures then do nothing
  std::int64_t num_experts_per_tok = 8;
  bool norm_topk_prob = false;
  double router_aux_loss_coef = 0.001;

  /// How expert weights are stored (Note [Pre-transposed expert weights]).
  nn::ExpertWeights expert_weights = nn::ExpertWeights::kPretransposed;
  Dtype dtype = Dtype::kFloat32;

  /// Layer i has experts unless it is in mlp_only_layers or decoder_sparse_step leaves it out.
  bool is_moe_layer(std::int64_t i) const;
  std::int64_t num_moe_layers() const;

  /// Throws ValueError: `qwen3_moe config: <key> must be <required>, got <value>`.
  void validate() const;

  friend bool operator==(const Qwen3MoeConfig&, const Qwen3MoeConfig&) = default;

  /// Models for a byte tokenizer (vocabulary 256): "tiny" (0.3 M parameters), "small" (1.8 M),
  /// "medium" (25 M), and "tiny-dense" (0.2 M) without experts; and the released models,
  /// "qwen3-30b-a3b", "qwen3-235b-a22b" and the dense "qwen3-0.6b".
  static Qwen3MoeConfig preset(std::string_view name);
};

/// The number of elements of all parameters. A tied parameter counts once.
std::int64_t parameter_count(const Qwen3MoeConfig& config);
/// parameter_count() with only the num_experts_per_tok experts that a token uses in each layer.
std::int64_t active_parameter_count(const Qwen3MoeConfig& config);
/// The floating-point operations of training (forward and backward, nothing recomputed) per token
/// of documents of `length` tokens: 6 per weight that multiplies the token, and causal attention's
/// two products over the (length + 1) / 2 tokens that it sees on average.
double flops_per_token(const Qwen3MoeConfig& config, std::int64_t length);
/// The same for all tokens of `documents`: the model FLOPs of a step, from which MFU is computed.
///
/// Reference: Chowdhery et al., "PaLM", 2022, https://arxiv.org/abs/2204.02311, appendix B; unlike
/// there, attention counts only the tokens that are seen.
double training_flops(const Qwen3MoeConfig& config, const Documents& documents);

}  // namespace moegrad::models
