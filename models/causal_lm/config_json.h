// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "models/causal_lm/config.h"

namespace moegrad::models {

/// Reads and validates a config.json as transformers 4 or 5 writes it. model_type is "qwen3_moe",
/// "qwen2_moe", "mixtral", "glm4_moe" or "qwen3" (a configuration with num_experts = 0); a file
/// without one is taken as "qwen3_moe". Keys that are absent or null keep the defaults of the class
/// of that model_type. Keys that change nothing here (token ids, what generate() or a trainer
/// reads, names that begin with an underscore) are passed over.
///
/// A ValueError are any other key, such as n_shared_experts for a Qwen3-MoE, a value that these
/// models do not implement (another model_type or hidden_act, biases that the model does not have,
/// rope_scaling, sliding windows, dropout, quantization), a key that appears twice, and two
/// spellings of one setting that disagree: num_experts and num_local_experts, rope_theta and
/// rope_parameters.rope_theta, torch_dtype and dtype. Weights of 16 bits widen to float32.
///
/// The framework's own fields may be in the file too: "expert_weights": "pretransposed" | "hf", and
/// "moegrad_dtype": "float32" | "float64", which outranks torch_dtype.
CausalLMConfig read_model_config(const std::string& path);
/// The same from the text of the file.
CausalLMConfig parse_model_config(std::string_view text);

/// A config.json that both versions of transformers read, and that parse_model_config() turns
/// back into this configuration. Without experts it is Qwen3's, without the keys of mixtures: those
/// come back as the defaults.
std::string to_json(const CausalLMConfig& config);

}  // namespace moegrad::models
