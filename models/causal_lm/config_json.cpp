// SPDX-License-Identifier: Apache-2.0
#include "models/causal_lm/config_json.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "framework/io/input_file.h"
#include "framework/io/json_node.h"
#include "framework/io/utf8.h"
#include "framework/runtime/error.h"
#include "models/causal_lm/family.h"
#include "models/qwen3_moe/qwen3_moe.h"

namespace moegrad::models {
namespace {

using nlohmann::json;

bool has_key(const ModelFamily& family, std::string_view key) {
  const auto is_key = [&](const ConfigKey& one) { return one.name == key; };
  return std::ranges::any_of(common_keys(), is_key) || std::ranges::any_of(family.keys, is_key);
}

bool has_experts(const ModelFamily& family) { return family.defaults.num_experts > 0; }

void assign(const JsonNode& value, std::int64_t& field) { field = value.integer(); }
void assign(const JsonNode& value, double& field) { field = value.number(); }
void assign(const JsonNode& value, bool& field) { field = value.boolean(); }
void assign(const JsonNode& value, std::string& field) { field = value.text(); }
void assign(const JsonNode& value, std::vector<std::int64_t>& field) {
  field = value.list(&JsonNode::integer);
}

/// Overwrites `field` if the key is there.
template <class Field>
void read(const JsonNode& keys, std::string_view key, Field& field) {
  if (keys.has(key)) assign(keys[key], field);
}

/// Reads a setting with two spellings, which may be in different objects.
template <class Field>
void read_either(const JsonNode& keys, std::string_view key, const JsonNode& other_keys,
                 std::string_view other, Field& field) {
  read(other_keys, other, field);
  if (!keys.has(key)) return;
  Field value{};
  read(keys, key, value);
  if (other_keys.has(other)) {
    other_keys[other].require(field == value, "must be as ", key, " (", keys[key],
                              ") where both are given, got ", other_keys[other]);
  }
  field = value;
}

/// Overwrites `field` by what the key's word means, if the key is there. `all` is how an error
/// lists the words.
template <class Field>
void read_word(const JsonNode& keys, std::string_view key, std::string_view all,
               const std::map<std::string_view, Field>& words, Field& field) {
  if (!keys.has(key)) return;
  const auto found = words.find(keys[key].text());
  keys[key].require(found != words.end(), "must be ", all, ", got ", keys[key]);
  field = found->second;
}

/// A key whose other values this model does not implement.
void require_value(const JsonNode& keys, std::string_view key, const json& implemented) {
  if (!keys.has(key)) return;
  keys[key].require(keys[key].value() == implemented, "must be ", implemented, ", got ", keys[key]);
}

/// transformers 5 stores what rope depends on in an object.
void read_rope(const JsonNode& keys, const ModelFamily& family, CausalLMConfig& config) {
  const bool partial = has_key(family, "partial_rotary_factor");
  if (!partial) require_value(keys, "partial_rotary_factor", 1.0);
  if (!keys.has("rope_parameters")) {
    read(keys, "rope_theta", config.rope_theta);
    return;
  }
  const auto parameters = keys["rope_parameters"];
  require_value(parameters, "rope_type", "default");
  if (!partial) require_value(parameters, "partial_rotary_factor", 1.0);
  parameters.allow_only({"rope_type", "rope_theta", "partial_rotary_factor"});
  read_either(keys, "rope_theta", parameters, "rope_theta", config.rope_theta);
  if (!partial) return;
  read_either(keys, "partial_rotary_factor", parameters, "partial_rotary_factor",
              config.partial_rotary_factor);
}

/// The dtype of the file's weights determines the dtype to compute in, unless another is given.
void read_dtype(const JsonNode& keys, Dtype& dtype) {
  std::string agreed;
  read_either(keys, "torch_dtype", keys, "dtype", agreed);
  for (const auto* key : {"torch_dtype", "dtype"}) {
    read_word<Dtype>(keys, key, R"("float32", "float64", "bfloat16" or "float16")",
                     {{"float32", Dtype::kFloat32},
                      {"float64", Dtype::kFloat64},
                      {"bfloat16", Dtype::kFloat32},
                      {"float16", Dtype::kFloat32}},
                     dtype);
  }
  read_word<Dtype>(keys, "moegrad_dtype", R"("float32" or "float64")",
                   {{"float32", Dtype::kFloat32}, {"float64", Dtype::kFloat64}}, dtype);
}

/// Keys of transformers 4.51 to 5 that are read below, besides those of ModelFamily.
constexpr std::array kReadKeys = std::to_array<std::string_view>(
    {"attention_bias", "attention_dropout", "dtype", "hidden_act", "layer_types", "model_type",
     "moegrad_dtype", "partial_rotary_factor", "pruned_heads", "quantization_config",
     "rope_parameters", "rope_scaling", "rope_theta", "torch_dtype", "use_sliding_window"});

/// Keys of transformers that do not change what this model computes: windows that are switched off,
/// what the forward call returns, classes and tasks, token ids, generation. PretrainedConfig writes
/// all of them if it is asked for more than the differences from its defaults.
constexpr std::array kIgnoredKeys =
    std::to_array<std::string_view>({"add_cross_attention",
                                     "architectures",
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

/// Refuses unknown keys: a key that is not read here, such as n_shared_experts for most models,
/// might change the model.
void refuse_unknown_keys(const JsonNode& keys, const ModelFamily& family) {
  const auto contains = [](const auto& list, const std::string& key) {
    return std::ranges::find(list, key) != list.end();
  };
  const auto is_alias = [&](const std::string& key) {
    return std::ranges::any_of(family.aliases,
                               [&](const auto& alias) { return alias.first == key; });
  };
  for (const auto& [key, value] : keys.value().items()) {
    const bool of_window = family.has_window_switch && key == "sliding_window";
    const bool of_experts = has_experts(family) && key == "expert_weights";
    const bool known = key.starts_with('_') || value.is_null() || contains(kReadKeys, key) ||
                       contains(kIgnoredKeys, key) || has_key(family, key) || is_alias(key) ||
                       of_window || of_experts;
    if (known) continue;
    keys[key].require(false, "must be absent or null, for this model does not implement it, got ",
                      keys[key]);
  }
}

/// The family that model_type names; Qwen3-MoE without one.
const ModelFamily& family_in(const JsonNode& keys) {
  keys.require(keys.value().is_object(), "must be an object, got ", keys);
  if (!keys.has("model_type")) return qwen3_moe_family();
  const auto& families = model_families();
  std::vector<std::string> quoted;
  for (const auto* family : families) {
    quoted.push_back('"' + std::string(family->model_type) + '"');
  }
  const std::vector<std::string_view> types(quoted.begin(), quoted.end());
  const auto found = std::ranges::find(families, keys["model_type"].text(),
                                       [](const auto* family) { return family->model_type; });
  keys["model_type"].require(keys["model_type"].text() != "deepseek_v3", "must be ", listed(types),
                             ", got \"deepseek_v3\", whose latent attention does not exist here "
                             "(its mixture does: nn::MoE)");
  keys["model_type"].require(found != families.end(), "must be ", listed(types), ", got ",
                             keys["model_type"]);
  return **found;
}

void refuse_what_is_not_implemented(const JsonNode& keys, const ModelFamily& family) {
  refuse_unknown_keys(keys, family);
  require_value(keys, "hidden_act", "silu");
  if (!has_key(family, "attention_bias")) require_value(keys, "attention_bias", false);
  require_value(keys, "attention_dropout", 0.0);
  require_value(keys, "use_sliding_window", false);
  require_value(keys, "rope_scaling", nullptr);
  require_value(keys, "quantization_config", nullptr);
  require_value(keys, "pruned_heads", json::object());
  if (!keys.has("layer_types")) return;
  for (const auto& type : keys["layer_types"].elements()) {
    type.require(type.text() == "full_attention", "must be \"full_attention\", got ", type);
  }
}

void read_field(const JsonNode& keys, const ConfigKey& key, const ModelFamily& family,
                CausalLMConfig& config) {
  const auto alias = std::ranges::find(family.aliases, key.name,
                                       &std::pair<std::string_view, std::string_view>::second);
  std::visit(
      [&](auto member) {
        if (alias == family.aliases.end()) {
          read(keys, key.name, config.*member);
        } else {
          read_either(keys, key.name, keys, alias->first, config.*member);
        }
      },
      key.field);
}

CausalLMConfig read_config(const JsonNode& keys, const ModelFamily& family) {
  refuse_what_is_not_implemented(keys, family);
  auto config = family.defaults;
  for (const auto& key : common_keys()) {
    if (key.name != "head_dim") read_field(keys, key, family, config);
  }
  if (family.null_means_all_heads && keys.contains("num_key_value_heads") &&
      !keys.has("num_key_value_heads")) {
    config.num_key_value_heads = config.num_attention_heads;
  }
  check<ValueError>(config.num_attention_heads >= 1, family.model_type,
                    " config: num_attention_heads must be >= 1, got ", config.num_attention_heads);
  if (family.divides_hidden_size) {
    config.head_dim = config.hidden_size / config.num_attention_heads;
  }
  read(keys, "head_dim", config.head_dim);
  for (const auto& key : family.keys) {
    if (key.name != "partial_rotary_factor") read_field(keys, key, family, config);
  }
  if (has_key(family, "partial_rotary_factor")) {
    read(keys, "partial_rotary_factor", config.partial_rotary_factor);
  }
  read_rope(keys, family, config);
  read_word<nn::ExpertWeights>(keys, "expert_weights", R"("pretransposed" or "hf")",
                               {{"pretransposed", nn::ExpertWeights::kPretransposed},
                                {"hf", nn::ExpertWeights::kHuggingFace}},
                               config.expert_weights);
  read_dtype(keys, config.dtype);
  config.validate();
  return config;
}

}  // namespace

CausalLMConfig read_model_config(const std::string& path) {
  constexpr std::int64_t kMostBytes = 16 << 20;
  const auto text = read_input_file(path, "model config", kMostBytes);
  try {
    return parse_model_config(text);
  } catch (const Error& error) {
    throw ValueError(path + ": " + error.what());
  }
}

CausalLMConfig parse_model_config(std::string_view text) {
  constexpr int kMaxDepth = 16;  // of what others keep in the file
  const auto& family = family_in(JsonNode::parse(text, kMaxDepth, "model config"));
  const auto subject = std::string(family.model_type) + " config";
  return read_config(JsonNode::parse(text, kMaxDepth, subject), family);
}

std::string to_json(const CausalLMConfig& config) {
  const auto& family = family_of(config);
  json keys = {{"architectures", {family.architecture}},
               {"attention_bias", false},
               {"attention_dropout", 0.0},
               {"hidden_act", "silu"},
               {"model_type", family.model_type},
               {"rope_scaling", nullptr},
               {"rope_theta", config.rope_theta},
               {"sliding_window", nullptr},
               {"torch_dtype", to_string(config.dtype)},
               {"use_cache", true}};
  if (family.has_window_switch) keys["use_sliding_window"] = false;
  for (const auto* list : {&common_keys(), &family.keys}) {
    for (const auto& key : *list) {
      std::visit([&](auto member) { keys[std::string(key.name)] = config.*member; }, key.field);
    }
  }
  if (has_experts(family)) {
    const bool as_there = config.expert_weights == nn::ExpertWeights::kHuggingFace;
    keys["expert_weights"] = as_there ? "hf" : "pretransposed";
  }
  // What adds the auxiliary loss there, as here.
  if (has_key(family, "router_aux_loss_coef")) keys["output_router_logits"] = true;
  return keys.dump(/*indent=*/2) + "\n";
}

}  // namespace moegrad::models
