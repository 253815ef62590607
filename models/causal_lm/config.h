// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "framework/tensor/documents.h"
#include "framework/tensor/dtype.h"
#include "framework/tensor/layout.h"
#include "nn/experts.h"
#include "nn/moe.h"

namespace moegrad::models {

/// The class of transformers that a model has its names, keys and defaults from: the model_type of
/// config.json, which to_string() gives.
enum class ModelType : std::uint8_t { kQwen3Moe, kQwen2Moe, kMixtral, kGlm4Moe };

/// A decoder with mixtures of experts: the keys of Hugging Face's config.json, then the fields that
/// this framework adds. The defaults are those of transformers' Qwen3MoeConfig class; of() has
/// those of the other classes.
///
///     model_type   attention                             mixture
///     qwen3_moe    norms of q and k                      softmax
///     qwen2_moe    qkv_bias                              softmax, a gated shared expert
///     mixtral      plain                                 softmax, normalised; router_jitter_noise
///     glm4_moe     qkv_bias and norms of q and k as      sigmoid, groups of experts, correction
///                  chosen, partial_rotary_factor         bias, shared experts; the first layers
///                                                        are dense
///
/// Where a model_type has no key for a field, the field must be as in of(model_type). Without
/// experts (num_experts = 0) a qwen3_moe is dense in every layer: that is Hugging Face's Qwen3.
struct CausalLMConfig {
  ModelType model_type = ModelType::kQwen3Moe;

  std::int64_t vocab_size = 151936;
  std::int64_t hidden_size = 2048;
  std::int64_t intermediate_size = 6144;  // in dense layers
  std::int64_t num_hidden_layers = 24;
  std::int64_t num_attention_heads = 32;
  std::int64_t num_key_value_heads = 4;
  std::int64_t head_dim = 64;  // config.json: hidden_size / num_attention_heads when absent
  std::int64_t max_position_embeddings = 32768;  // the model takes more; tools/train does not
  double initializer_range = 0.02;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  double partial_rotary_factor = 1;  // the share of a head's channels that rope turns
  bool qkv_bias = false;             // glm4_moe's attention_bias
  bool use_qk_norm = true;
  bool tie_word_embeddings = false;

  std::int64_t decoder_sparse_step = 1;
  std::vector<std::int64_t> mlp_only_layers = {};
  std::int64_t first_k_dense_replace = 0;
  std::int64_t moe_intermediate_size = 768;  // mixtral's intermediate_size
  /// mixtral's num_local_experts, glm4_moe's n_routed_experts. 0: a dense decoder; the other keys
  /// of mixtures then do nothing.
  std::int64_t num_experts = 128;
  std::int64_t num_experts_per_tok = 8;
  nn::RouterScores router_scores = nn::RouterScores::kSoftmax;
  bool norm_topk_prob = false;
  std::int64_t n_group = 1;     // of experts
  std::int64_t topk_group = 1;  // of them, to which a token goes
  double routed_scaling_factor = 1;
  bool correction_bias = false;                      // of the router, for the choice alone
  double router_jitter_noise = 0;                    // nn::Jitter of what a mixture sees
  std::int64_t n_shared_experts = 0;                 // each of moe_intermediate_size
  std::int64_t shared_expert_intermediate_size = 0;  // of one with a gate of its own
  double router_aux_loss_coef = 0.001;
  /// Layers that predict further tokens. They are no part of this model: load_pretrained() passes
  /// over those of a checkpoint, as transformers does, also over more of them than this.
  std::int64_t num_nextn_predict_layers = 0;

  /// How expert weights are stored (Note [Pre-transposed expert weights]).
  nn::ExpertWeights expert_weights = nn::ExpertWeights::kPretransposed;
  Dtype dtype = Dtype::kFloat32;
  /// Keys of the config.json that it was read from, and that change nothing here, such as
  /// eos_token_id: their values as JSON. to_json() writes them again.
  std::map<std::string, std::string> other_keys = {};

  /// Layer i has experts unless it is in mlp_only_layers, among the first first_k_dense_replace, or
  /// decoder_sparse_step leaves it out.
  bool is_moe_layer(std::int64_t i) const;
  std::int64_t num_moe_layers() const;
  /// What the mixture of a layer is made of.
  nn::MoE::Config mixture() const;
  /// The channels of a head that rope turns.
  std::int64_t rotary_dim() const;

  /// Throws ValueError: `<model_type> config: <key> must be <required>, got <value>`.
  void validate() const;

  friend bool operator==(const CausalLMConfig&, const CausalLMConfig&) = default;

  /// The defaults of the class that transformers has for it.
  static CausalLMConfig of(ModelType type);
  /// Models for a byte tokenizer (vocabulary 256): "tiny" (0.3 M parameters), "small" (1.8 M),
  /// "medium" (25 M), "tiny-dense" (0.2 M) without experts, and "tiny-qwen2-moe", "tiny-mixtral",
  /// "tiny-glm4-moe" of the other types; the released models "qwen3-30b-a3b", "qwen3-235b-a22b" and
  /// the dense "qwen3-0.6b"; and "qwen3-moe-600b", which nobody has released.
  static CausalLMConfig preset(std::string_view name);
  /// All of them.
  static std::vector<std::string_view> preset_names();
};

std::string_view to_string(ModelType type);

/// The number of elements of all parameters. A tied parameter counts once.
std::int64_t parameter_count(const CausalLMConfig& config);
/// parameter_count() with only the num_experts_per_tok experts that a token uses in each layer.
std::int64_t active_parameter_count(const CausalLMConfig& config);
/// The floating-point operations of training (forward and backward, nothing recomputed) per token
/// of documents of `length` tokens: 6 per weight that multiplies the token, and causal attention's
/// two products over the (length + 1) / 2 tokens that it sees on average.
double flops_per_token(const CausalLMConfig& config, std::int64_t length);
/// The same for all tokens of `documents`: the model FLOPs of a step, from which MFU is computed.
///
/// Reference: Chowdhery et al., "PaLM", 2022, https://arxiv.org/abs/2204.02311, appendix B; unlike
/// there, attention counts only the tokens that are seen.
double training_flops(const CausalLMConfig& config, const Documents& documents);

}  // namespace moegrad::models
