// SPDX-License-Identifier: Apache-2.0
#include "models/families/families.h"

namespace moegrad::models {
namespace {

using Config = CausalLMConfig;

Config mixtral_defaults() {
  Config config;
  config.model_type = ModelType::kMixtral;
  config.vocab_size = 32000;
  config.hidden_size = 4096;
  config.num_hidden_layers = 32;
  config.num_key_value_heads = 8;
  config.head_dim = 128;
  config.max_position_embeddings = 131072;
  config.rms_norm_eps = 1e-5;
  config.rope_theta = 1e6;
  config.use_qk_norm = false;
  config.moe_intermediate_size = 14336;
  config.num_experts = 8;
  config.num_experts_per_tok = 2;
  config.norm_topk_prob = true;
  return config;
}

Config tiny_mixtral() {
  const auto defaults = mixtral_defaults();
  auto config = byte_model(defaults, {.hidden = 64, .layers = 4, .heads = 4, .experts = 8});
  config.intermediate_size = defaults.intermediate_size;  // of dense layers: there are none
  return config;
}

}  // namespace

const ModelFamily& mixtral_family() {
  static const ModelFamily family = {
      .model_type = "mixtral",
      .architecture = "MixtralForCausalLM",
      .defaults = mixtral_defaults(),
      .keys = {{"intermediate_size", &Config::moe_intermediate_size},
               {"num_local_experts", &Config::num_experts},
               {"num_experts_per_tok", &Config::num_experts_per_tok},
               {"router_jitter_noise", &Config::router_jitter_noise},
               {"router_aux_loss_coef", &Config::router_aux_loss_coef}},
      .aliases = {{"num_experts", "num_local_experts"}},
      .names = {.mixture = "block_sparse_moe", .projections = {"w1", "w3", "w2"}},
      .presets = {{"tiny-mixtral", tiny_mixtral()}}};
  return family;
}

}  // namespace moegrad::models
