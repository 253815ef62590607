// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "models/causal_lm/config.h"
#include "models/causal_lm/hf_names.h"

namespace moegrad::models {

/// A key of config.json and the field that it sets.
struct ConfigKey {
  using Field = std::variant<std::int64_t CausalLMConfig::*, double CausalLMConfig::*,
                             bool CausalLMConfig::*, std::vector<std::int64_t> CausalLMConfig::*>;
  std::string_view name;
  Field field;
};

/// What is particular to one class of models of transformers. All are made of the same layers: they
/// differ in their configurations and in names.
struct ModelFamily {
  std::string_view model_type;    // in config.json
  std::string_view architecture;  // the class
  CausalLMConfig defaults;        // of its configuration class
  /// Its keys beside common_keys(), which all families have.
  std::vector<ConfigKey> keys = {};
  /// Second spellings of keys: {spelling, key}.
  std::vector<std::pair<std::string_view, std::string_view>> aliases = {};
  /// head_dim is hidden_size / num_attention_heads where config.json does not say.
  bool divides_hidden_size = true;
  /// num_key_value_heads = null means num_attention_heads, not the default.
  bool null_means_all_heads = true;
  /// Windows are switched on by a key use_sliding_window. Without it, any sliding_window is one.
  bool has_window_switch = false;
  /// The names in files that transformers 4 wrote, and that transformers 5 still writes.
  HfNames names = {};
  /// Small ones to train, and released ones.
  std::vector<std::pair<std::string_view, CausalLMConfig>> presets = {};
};

/// All families, those with the defaults first.
const std::vector<const ModelFamily*>& model_families();
/// The family of a configuration: without experts, Qwen3 for qwen3_moe.
const ModelFamily& family_of(const CausalLMConfig& config);

/// "a, b or c"
std::string listed(const std::vector<std::string_view>& names);

/// The keys that all families have, but for rope_theta, which has two places.
const std::vector<ConfigKey>& common_keys();

/// The fields that another family has a key for and this one has not. They must equal `defaults`.
std::vector<ConfigKey> fields_without_key(const ModelFamily& family);
/// ValueError if one of them does not.
void check_fields_without_key(const CausalLMConfig& config);

struct ByteModelSizes {
  std::int64_t hidden, layers, heads, experts;
  std::int64_t per_token = 2;
};
/// A model of bytes: `defaults` of its family with these sizes, 2 kv heads and head_dim = hidden /
/// heads.
CausalLMConfig byte_model(const CausalLMConfig& defaults, const ByteModelSizes& sizes);

}  // namespace moegrad::models
