// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "framework/tensor/dtype.h"
#include "framework/tensor/layout.h"
#include "nn/experts.h"

namespace moegrad::models {

/// A Qwen3-MoE model: the keys of Hugging Face's config.json, with the defaults of its
/// Qwen3MoeConfig class, then the fields that this framework adds.
struct Qwen3MoeConfig {
  std::int64_t vocab_size = 151936;
  std::int64_t hidden_size = 2048;
  std::int64_t intermediate_size = 6144;  // in dense layers
  std::int64_t num_hidden_layers = 24;
  std::int64_t num_attention_heads = 32;
  std::int64_t num_key_value_heads = 4;
  std::int64_t head_dim = 64;  // from_json: hidden_size / num_attention_heads when absent
  std::int64_t max_position_embeddings = 32768;  // the model takes more; train_qwen3_moe does not
  double initializer_range = 0.02;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  bool tie_word_embeddings = false;

  std::int64_t decoder_sparse_step = 1;
  std::vector<std::int64_t> mlp_only_layers = {};
  std::int64_t moe_intermediate_size = 768;
  std::int64_t num_experts = 128;
  std::int64_t num_experts_per_tok = 8;
  bool norm_topk_prob = false;
  double router_aux_loss_coef = 0.001;

  /// How expert weights are stored (Note [Pre-transposed expert weights]), and the layout into
  /// which fully_shard's copy-out writes them.
  nn::ExpertWeights expert_weights = nn::ExpertWeights::kPretransposed;
  Layout gathered_layout = Layout::kNZ;
  Dtype dtype = Dtype::kFloat32;

  /// Layer i has experts unless it is in mlp_only_layers or decoder_sparse_step leaves it out.
  bool is_moe_layer(std::int64_t i) const;
  std::int64_t num_moe_layers() const;

  /// Throws ValueError: `qwen3_moe config: <key> must be <required>, got <value>`.
  void validate() const;

  /// Reads and validates a config.json as transformers 4 or 5 writes it. Keys that are absent or
  /// null keep the class defaults. Keys that change nothing here (token ids, what generate() or a
  /// trainer reads, names that begin with an underscore) are skipped. Weights of 16 bits are
  /// widened to float32. ValueError for
  ///
  /// - any other key (n_shared_experts, scoring_func, ...);
  /// - a value that this model does not implement (another hidden_act, attention_bias,
  ///   rope_scaling, sliding windows, dropout, quantization);
  /// - a key that appears twice;
  /// - two spellings of one setting that disagree: num_experts and num_local_experts, rope_theta
  ///   and rope_parameters.rope_theta, torch_dtype and dtype.
  ///
  /// The file may also contain the framework's own fields: "expert_weights": "pretransposed" |
  /// "hf", "gathered_layout": "nz" | "nd", and "moegrad_dtype": "float32" | "float64", which
  /// overrides torch_dtype.
  static Qwen3MoeConfig from_json(const std::string& path);
  static Qwen3MoeConfig parse_json(std::string_view text);

  /// A config.json that both versions of transformers read. parse_json() turns it back into this
  /// configuration.
  std::string to_json() const;

  friend bool operator==(const Qwen3MoeConfig&, const Qwen3MoeConfig&) = default;

  /// Models for a byte tokenizer (vocabulary 256): "tiny" (0.3 M parameters), "small" (1.8 M),
  /// "medium" (25 M); and the released models, "qwen3-30b-a3b" and "qwen3-235b-a22b".
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

}  // namespace moegrad::models
