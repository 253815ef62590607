// SPDX-License-Identifier: Apache-2.0
#include "models/families/families.h"

namespace moegrad::models {
namespace {

using Config = CausalLMConfig;

// As https://huggingface.co/Qwen/Qwen3-30B-A3B and Qwen3-235B-A22B: 128 experts, 8 per token.
Config released_qwen3_moe(std::int64_t hidden, std::int64_t layers, std::int64_t heads,
                          std::int64_t intermediate, std::int64_t moe_intermediate) {
  Config config;
  config.vocab_size = 151936;
  config.max_position_embeddings = 40960;
  config.norm_topk_prob = true;
  config.rope_theta = 1e6;
  config.router_aux_loss_coef = 0.001;
  config.hidden_size = hidden;
  config.intermediate_size = intermediate;
  config.num_hidden_layers = layers;
  config.num_attention_heads = heads;
  config.num_key_value_heads = 4;
  config.head_dim = 128;
  config.moe_intermediate_size = moe_intermediate;
  config.num_experts = 128;
  config.num_experts_per_tok = 8;
  return config;
}

/// The same decoder with dense layers alone.
Config without_experts(Config config) {
  const Config defaults;
  config.num_experts = 0;
  config.moe_intermediate_size = defaults.moe_intermediate_size;
  config.num_experts_per_tok = defaults.num_experts_per_tok;
  config.norm_topk_prob = defaults.norm_topk_prob;
  config.router_aux_loss_coef = defaults.router_aux_loss_coef;
  return config;
}

// As https://huggingface.co/Qwen/Qwen3-0.6B.
Config released_qwen3() {
  auto config = without_experts(released_qwen3_moe(1024, 28, 16, 3072, 0));
  config.num_key_value_heads = 8;
  config.tie_word_embeddings = true;
  return config;
}

Config qwen3_defaults() {
  Config config;
  config.hidden_size = 4096;
  config.intermediate_size = 22016;
  config.num_hidden_layers = 32;
  config.num_key_value_heads = 32;
  config.head_dim = 128;
  config.num_experts = 0;
  return config;
}

Config qwen3_byte_model(const ByteModelSizes& sizes) { return byte_model(Config(), sizes); }

}  // namespace

const ModelFamily& qwen3_moe_family() {
  static const ModelFamily family = {
      .model_type = "qwen3_moe",
      .architecture = "Qwen3MoeForCausalLM",
      .defaults = Config(),
      .keys = {{"intermediate_size", &Config::intermediate_size},
               {"decoder_sparse_step", &Config::decoder_sparse_step},
               {"mlp_only_layers", &Config::mlp_only_layers},
               {"moe_intermediate_size", &Config::moe_intermediate_size},
               {"num_experts", &Config::num_experts},
               {"num_experts_per_tok", &Config::num_experts_per_tok},
               {"norm_topk_prob", &Config::norm_topk_prob},
               {"router_aux_loss_coef", &Config::router_aux_loss_coef}},
      .aliases = {{"num_local_experts", "num_experts"}},
      .null_means_all_heads = false,
      .has_window_switch = true,
      .presets = {
          {"tiny", qwen3_byte_model({.hidden = 64, .layers = 4, .heads = 4, .experts = 8})},
          {"small", qwen3_byte_model(
                        {.hidden = 128, .layers = 4, .heads = 4, .experts = 16, .per_token = 4})},
          {"medium", qwen3_byte_model(
                         {.hidden = 256, .layers = 8, .heads = 8, .experts = 32, .per_token = 4})},
          {"qwen3-30b-a3b", released_qwen3_moe(2048, 48, 32, 6144, 768)},
          {"qwen3-235b-a22b", released_qwen3_moe(4096, 94, 64, 12288, 1536)},
          // Not a released model: what the same design comes to with 600 billion parameters.
          {"qwen3-moe-600b", released_qwen3_moe(6144, 96, 96, 18432, 2560)}}};
  return family;
}

const ModelFamily& qwen3_family() {
  static const ModelFamily family = {
      .model_type = "qwen3",
      .architecture = "Qwen3ForCausalLM",
      .defaults = qwen3_defaults(),
      .keys = {{"intermediate_size", &Config::intermediate_size}},
      .divides_hidden_size = false,
      .has_window_switch = true,
      .presets = {{"tiny-dense", without_experts(qwen3_byte_model(
                                     {.hidden = 64, .layers = 4, .heads = 4, .experts = 0}))},
                  {"qwen3-0.6b", released_qwen3()}}};
  return family;
}

}  // namespace moegrad::models
