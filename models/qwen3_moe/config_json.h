// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "models/qwen3_moe/config.h"

namespace moegrad::models {

/// Reads and validates a config.json as transformers 4 or 5 writes it for Qwen3-MoE (model_type
/// "qwen3_moe", or none) or for Qwen3 (model_type "qwen3": a configuration with num_experts = 0).
/// Keys that are absent or null keep the defaults of the class of that model_type. Keys that change
/// nothing here (token ids, what generate() or a trainer
/// reads, names that begin with an underscore) are passed over. A ValueError are any other key
/// (n_shared_experts, scoring_func, ... and for Qwen3 the keys of mixtures), a value that this
/// model does not implement (another model_type or hidden_act, attention_bias, rope_scaling, a
/// partial_rotary_factor other than 1, sliding windows, dropout, quantization), a key that appears
/// twice, and two spellings of one setting that disagree: num_experts and num_local_experts,
/// rope_theta and rope_parameters.rope_theta, torch_dtype and dtype. Weights of 16 bits widen to
/// float32.
///
/// The framework's own fields may be in the file too: "expert_weights": "pretransposed" | "hf", and
/// "moegrad_dtype": "float32" | "float64", which outranks torch_dtype.
Qwen3MoeConfig read_qwen3_moe_config(const std::string& path);
/// The same from the text of the file.
Qwen3MoeConfig parse_qwen3_moe_config(std::string_view text);

/// A config.json that both versions of transformers read, and that parse_qwen3_moe_config() turns
/// back into this configuration. Without experts it is Qwen3's, without the keys of mixtures: those
/// come back as the defaults.
std::string to_json(const Qwen3MoeConfig& config);

}  // namespace moegrad::models
