// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "models/causal_lm/config.h"

namespace moegrad::models {

/// Reads and validates a config.json as transformers 4 or 5 writes it. model_type is "qwen3_moe",
/// "qwen2_moe", "mixtral", "glm4_moe" or "qwen3" (a configuration with num_experts = 0); a file
/// without one is taken as "qwen3_moe". Absent keys keep the defaults of the class of that
/// model_type, and so do those that are null where that class takes null. Keys that change nothing
/// here are kept in other_keys: token ids, what generate() or a trainer reads, names that begin
/// with an underscore or with the name of a tool ("unsloth_version").
///
/// ValueError for any other key, for a value that these models do not implement (another model_type
/// or hidden_act, n_shared_experts other than 0 for a Qwen3-MoE, biases that the model does not
/// have, rope_scaling, sliding windows, dropout, quantization), for a key that appears twice, and
/// for two spellings of one setting that disagree: num_experts and num_local_experts, rope_theta
/// and rope_parameters.rope_theta, torch_dtype and dtype. Weights of 16 bits widen to float32.
///
/// The framework's own fields may be in the file too: "expert_weights": "pretransposed" | "hf", and
/// "moegrad_dtype": "float32" | "float64", which outranks torch_dtype.
CausalLMConfig read_model_config(const std::string& path);
/// The same from the text of the file.
CausalLMConfig parse_model_config(std::string_view text);

/// A config.json that both versions of transformers read, and that parse_model_config() turns
/// back into this configuration. Without experts it is Qwen3's, without the keys of mixtures: those
/// come back as the defaults. torch_dtype is that of the weights: `stored`, or else the model's.
///
/// output_router_logits, by which transformers adds the auxiliary loss, is as in the config.json
/// that was read, and true for a configuration of another origin.
std::string to_json(const CausalLMConfig& config, std::optional<Dtype> stored = std::nullopt);

}  // namespace moegrad::models
