// SPDX-License-Identifier: Apache-2.0
#include "models/causal_lm/config_keys.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>
#include <vector>

#include "framework/runtime/utf8.h"

namespace moegrad::models {
namespace {

/// Keys of transformers 4.51 to 5 that are read, besides those of ModelFamily.
constexpr std::array kReadKeys = std::to_array<std::string_view>(
    {"architectures", "attention_bias", "attention_dropout", "dtype", "hidden_act", "layer_types",
     "model_type", "moegrad_dtype", "partial_rotary_factor", "pruned_heads", "quantization_config",
     "rope_parameters", "rope_scaling", "rope_theta", "sliding_window", "torch_dtype",
     "use_sliding_window"});

/// Keys of transformers that do not change what this model computes: windows that are switched off,
/// what the forward call returns, classes and tasks, token ids, generation. PretrainedConfig writes
/// all of them if it is asked for more than the differences from its defaults.
constexpr std::array kIgnoredKeys =
    std::to_array<std::string_view>({"add_cross_attention",
                                     "attn_implementation",
                                     "auto_map",
                                     "bad_words_ids",
                                     "base_model_pp_plan",
                                     "base_model_tp_plan",
                                     "begin_suppress_tokens",
                                     "bos_token_id",
                                     "cache_implementation",
                                     "chunk_size_feed_forward",
                                     "cross_attention_hidden_size",
                                     "decoder_start_token_id",
                                     "diversity_penalty",
                                     "do_sample",
                                     "early_stopping",
                                     "encoder_no_repeat_ngram_size",
                                     "eos_token_id",
                                     "exponential_decay_length_penalty",
                                     "finetuning_task",
                                     "forced_bos_token_id",
                                     "forced_eos_token_id",
                                     "gathered_layout",
                                     "gradient_checkpointing",
                                     "id2label",
                                     "is_decoder",
                                     "is_encoder_decoder",
                                     "label2id",
                                     "length_penalty",
                                     "max_length",
                                     "max_window_layers",
                                     "min_length",
                                     "model_max_length",
                                     "name_or_path",
                                     "no_repeat_ngram_size",
                                     "num_beam_groups",
                                     "num_beams",
                                     "num_labels",
                                     "num_return_sequences",
                                     "output_attentions",
                                     "output_hidden_states",
                                     "output_router_logits",
                                     "output_scores",
                                     "pad_token_id",
                                     "prefix",
                                     "pretraining_tp",
                                     "problem_type",
                                     "remove_invalid_values",
                                     "repetition_penalty",
                                     "return_dict",
                                     "return_dict_in_generate",
                                     "sep_token_id",
                                     "suppress_tokens",
                                     "task_specific_params",
                                     "temperature",
                                     "tf_legacy_loss",
                                     "tie_encoder_decoder",
                                     "tokenizer_class",
                                     "top_k",
                                     "top_p",
                                     "torchscript",
                                     "transformers_version",
                                     "typical_p",
                                     "use_bfloat16",
                                     "use_cache",
                                     "use_return_dict"});

/// Names with which the keys of tools begin that write down what they have done. No key that a
/// model reads begins so.
constexpr std::array kTools =
    std::to_array<std::string_view>({"axolotl_", "mergekit_", "unsloth_"});

/// All keys that are read.
std::vector<std::string_view> read_keys(const ModelFamily& family) {
  std::vector<std::string_view> names(kReadKeys.begin(), kReadKeys.end());
  for (const auto* list : {&common_keys(), &family.keys}) {
    for (const auto& key : *list) names.push_back(key.name);
  }
  for (const auto& alias : family.aliases) names.push_back(alias.first);
  for (const auto& key : fields_without_key(family)) names.push_back(key.name);
  if (has_experts(family)) names.emplace_back("expert_weights");
  return names;
}

/// The number of characters to insert, remove or replace that make `b` of `a`.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0U);
  for (std::size_t i = 0; i < a.size(); ++i) {
    auto diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const auto replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

/// The model types that have such a key.
std::vector<std::string_view> types_with(const std::string& key) {
  std::vector<std::string_view> types;
  for (const auto* family : model_families()) {
    const auto keys = read_keys(*family);
    if (std::ranges::find(keys, key) != keys.end()) types.push_back(family->model_type);
  }
  return types;
}

}  // namespace

bool has_key(const ModelFamily& family, std::string_view key) {
  const auto is_key = [&](const ConfigKey& one) { return one.name == key; };
  return std::ranges::any_of(common_keys(), is_key) || std::ranges::any_of(family.keys, is_key);
}

bool has_experts(const ModelFamily& family) { return family.defaults.num_experts > 0; }

bool is_passed_over(const ModelFamily& family, const std::string& key) {
  const auto begins_key = [&](std::string_view tool) { return key.starts_with(tool); };
  return key.starts_with('_') || std::ranges::any_of(kTools, begins_key) ||
         std::ranges::find(kIgnoredKeys, key) != kIgnoredKeys.end() ||
         (family.has_window_switch && key == "sliding_window");
}

void refuse_unknown_keys(const JsonNode& keys, const ModelFamily& family) {
  const auto known = read_keys(family);
  for (const auto& [key, value] : keys.value().items()) {
    if (value.is_null() || is_passed_over(family, key)) continue;
    if (std::ranges::find(known, key) != known.end()) continue;
    const auto types = types_with(key);
    keys[key].require(types.empty(), "must be absent or null, for a ", family.model_type,
                      " has no such key, only ", listed(types), "; got ", keys[key]);
    const auto typed = std::string_view(key).substr(0, 64);  // known keys are shorter by far
    const auto distance = [&](std::string_view name) { return edit_distance(typed, name); };
    const auto nearest = *std::ranges::min_element(known, {}, distance);
    const bool is_near = distance(nearest) <= std::max<std::size_t>(1, typed.size() / 4);
    keys.require(false, "must have known keys alone, got the unknown key ", in_quotes(key),
                 is_near ? "; the nearest known one is " + in_quotes(nearest) : "");
  }
}

}  // namespace moegrad::models
