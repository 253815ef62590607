// SPDX-License-Identifier: Apache-2.0
#include "models/families/families.h"

namespace moegrad::models {
namespace {

using Config = CausalLMConfig;

Config qwen2_moe_defaults() {
  Config config;
  config.model_type = ModelType::kQwen2Moe;
  config.intermediate_size = 5632;
  config.num_attention_heads = 16;
  config.num_key_value_heads = 16;
  config.head_dim = 128;
  config.qkv_bias = true;
  config.use_qk_norm = false;
  config.moe_intermediate_size = 1408;
  config.num_experts = 60;
  config.num_experts_per_tok = 4;
  config.shared_expert_intermediate_size = 5632;
  return config;
}

Config tiny_qwen2_moe() {
  auto config =
      byte_model(qwen2_moe_defaults(), {.hidden = 64, .layers = 4, .heads = 4, .experts = 8});
  config.shared_expert_intermediate_size = 64;
  return config;
}

}  // namespace

const ModelFamily& qwen2_moe_family() {
  static const ModelFamily family = {
      .model_type = "qwen2_moe",
      .architecture = "Qwen2MoeForCausalLM",
      .defaults = qwen2_moe_defaults(),
      .keys = {{"intermediate_size", &Config::intermediate_size},
               {"qkv_bias", &Config::qkv_bias},
               {"decoder_sparse_step", &Config::decoder_sparse_step},
               {"mlp_only_layers", &Config::mlp_only_layers},
               {"moe_intermediate_size", &Config::moe_intermediate_size},
               {"num_experts", &Config::num_experts},
               {"num_experts_per_tok", &Config::num_experts_per_tok},
               {"norm_topk_prob", &Config::norm_topk_prob},
               {"shared_expert_intermediate_size", &Config::shared_expert_intermediate_size},
               {"router_aux_loss_coef", &Config::router_aux_loss_coef}},
      .aliases = {{"num_local_experts", "num_experts"}},
      .null_means_all_heads = false,
      .has_window_switch = true,
      .presets = {{"tiny-qwen2-moe", tiny_qwen2_moe()}}};
  return family;
}

}  // namespace moegrad::models
