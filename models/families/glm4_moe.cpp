// SPDX-License-Identifier: Apache-2.0
#include "models/families/families.h"

namespace moegrad::models {
namespace {

using Config = CausalLMConfig;

Config glm4_moe_defaults() {
  Config config;
  config.model_type = ModelType::kGlm4Moe;
  config.vocab_size = 151552;
  config.hidden_size = 4096;
  config.intermediate_size = 10944;
  config.num_hidden_layers = 46;
  config.num_attention_heads = 96;
  config.num_key_value_heads = 8;
  config.head_dim = 128;  // as GLM-4.5; a config.json without it means hidden / heads
  config.max_position_embeddings = 131072;
  config.rms_norm_eps = 1e-5;
  config.partial_rotary_factor = 0.5;
  config.use_qk_norm = false;
  config.first_k_dense_replace = 1;
  config.moe_intermediate_size = 1408;
  config.router_scores = nn::RouterScores::kSigmoid;
  config.norm_topk_prob = true;
  config.correction_bias = true;
  config.n_shared_experts = 1;
  config.router_aux_loss_coef = 0;
  return config;
}

Config tiny_glm4_moe() {
  auto config =
      byte_model(glm4_moe_defaults(), {.hidden = 64, .layers = 4, .heads = 4, .experts = 8});
  config.router_aux_loss_coef = 0;
  config.use_qk_norm = true;
  config.n_group = 4;
  config.topk_group = 2;
  config.routed_scaling_factor = 1.5;
  return config;
}

}  // namespace

const ModelFamily& glm4_moe_family() {
  static const ModelFamily family = {
      .model_type = "glm4_moe",
      .architecture = "Glm4MoeForCausalLM",
      .defaults = glm4_moe_defaults(),
      .keys = {{"intermediate_size", &Config::intermediate_size},
               {"attention_bias", &Config::qkv_bias},
               {"use_qk_norm", &Config::use_qk_norm},
               {"partial_rotary_factor", &Config::partial_rotary_factor},
               {"first_k_dense_replace", &Config::first_k_dense_replace},
               {"moe_intermediate_size", &Config::moe_intermediate_size},
               {"n_routed_experts", &Config::num_experts},
               {"num_experts_per_tok", &Config::num_experts_per_tok},
               {"norm_topk_prob", &Config::norm_topk_prob},
               {"n_group", &Config::n_group},
               {"topk_group", &Config::topk_group},
               {"routed_scaling_factor", &Config::routed_scaling_factor},
               {"n_shared_experts", &Config::n_shared_experts},
               {"num_nextn_predict_layers", &Config::num_nextn_predict_layers}},
      .aliases = {{"num_local_experts", "n_routed_experts"}},
      .presets = {{"tiny-glm4-moe", tiny_glm4_moe()}}};
  return family;
}

}  // namespace moegrad::models
