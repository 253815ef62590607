// SPDX-License-Identifier: Apache-2.0
#include "train/speed_preset.h"

#include "framework/runtime/error.h"

namespace moegrad::training {

SpeedPreset speed_preset(std::string_view name) {
  SpeedPreset preset;
  auto& config = preset.config;
  if (name == "tiny") {
    preset = {.config = models::CausalLMConfig::preset("tiny"), .sequences = 2, .length = 32};
    config.router_aux_loss_coef = 0;
    return preset;
  }
  config.vocab_size = 4096;
  config.hidden_size = 512;
  config.num_hidden_layers = 4;
  config.num_attention_heads = 8;
  config.num_key_value_heads = 2;
  config.head_dim = 64;
  config.num_experts = 32;
  config.num_experts_per_tok = 4;
  config.moe_intermediate_size = 256;
  config.rope_theta = 1e6;
  config.norm_topk_prob = true;
  config.router_aux_loss_coef = 0;
  if (name == "fine") {
    config.num_experts = 128;
    config.num_experts_per_tok = 8;
    config.moe_intermediate_size = 128;
    preset.sequences = 1;
  } else if (name == "long") {
    preset.sequences = 1;
    preset.length = 16384;
  } else {
    check<ValueError>(name == "main", "speed preset: must be main, fine, long or tiny, got ", name);
  }
  return preset;
}

SpeedPreset resized(SpeedPreset preset, const SpeedSizes& sizes) {
  const auto set = [](std::int64_t& size, const std::optional<std::int64_t>& value,
                      std::string_view name) {
    if (!value) return;
    check<ValueError>(*value > 0, "speed preset: ", name, " must be at least 1, got ", *value);
    size = *value;
  };
  set(preset.sequences, sizes.sequences, "sequences");
  set(preset.length, sizes.length, "length");
  set(preset.config.num_experts, sizes.experts, "experts");
  preset.config.validate();
  return preset;
}

RandomData random_data(const SpeedPreset& preset, std::int64_t sequences,
                       std::int64_t micro_batches) {
  return RandomData({.vocab_size = preset.config.vocab_size,
                     .length = preset.length,
                     .sequences = sequences,
                     .micro_batches = micro_batches,
                     .same_in_every_step = true});
}

}  // namespace moegrad::training
