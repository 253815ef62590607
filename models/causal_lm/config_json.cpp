// SPDX-License-Identifier: Apache-2.0
#include "models/causal_lm/config_json.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "framework/io/input_file.h"
#include "framework/io/json_node.h"
#include "framework/runtime/error.h"
#include "models/causal_lm/config_keys.h"
#include "models/causal_lm/family.h"
#include "models/families/families.h"

namespace moegrad::models {
namespace {

using nlohmann::json;

void assign(const JsonNode& value, std::int64_t& field) { field = value.integer(); }
void assign(const JsonNode& value, double& field) { field = value.number(); }
void assign(const JsonNode& value, bool& field) { field = value.boolean(); }
void assign(const JsonNode& value, std::string& field) { field = value.text(); }
void assign(const JsonNode& value, std::vector<std::int64_t>& field) {
  field = value.list(&JsonNode::integer);
}

/// Overwrites `field` if the key is there and not null.
template <class Field>
void read(const JsonNode& keys, std::string_view key, Field& field) {
  if (keys.has(key)) assign(keys[key], field);
}

/// Refuses null for a key that needs a value, as what `field` is.
template <class Field>
void refuse_null(const JsonNode& keys, std::string_view key, Field field) {
  if (keys.contains(key) && !keys.has(key)) assign(keys[key], field);
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

void require_default_rope(const JsonNode& parameters) {
  for (const auto* key : {"rope_type", "type"}) require_value(parameters, key, "default");
}

/// transformers 5 stores what rope depends on in rope_parameters. rope_scaling, of transformers 4,
/// may say that nothing is scaled.
void read_rope(const JsonNode& keys, const ModelFamily& family, CausalLMConfig& config) {
  refuse_null(keys, "rope_theta", config.rope_theta);
  const bool partial = has_key(family, "partial_rotary_factor");
  if (!partial) require_value(keys, "partial_rotary_factor", 1.0);
  if (keys.has("rope_scaling")) {
    const auto scaling = keys["rope_scaling"];
    require_default_rope(scaling);
    scaling.allow_only({"rope_type", "type"});
    scaling.require(!keys.has("rope_parameters"), "must be null beside rope_parameters, got ",
                    scaling);
  }
  if (!keys.has("rope_parameters")) {
    read(keys, "rope_theta", config.rope_theta);
    return;
  }
  const auto parameters = keys["rope_parameters"];
  require_default_rope(parameters);
  refuse_null(parameters, "rope_theta", config.rope_theta);
  if (!partial) require_value(parameters, "partial_rotary_factor", 1.0);
  parameters.allow_only({"rope_type", "type", "rope_theta", "partial_rotary_factor"});
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

/// The family that model_type names; Qwen3-MoE without one.
const ModelFamily& family_in(const JsonNode& keys) {
  keys.require(keys.value().is_object(), "must be an object, got ", keys);
  if (!keys.contains("model_type")) return qwen3_moe_family();
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

/// Refuses a model_type whose class is not the one that the file names.
void check_class(const JsonNode& keys, const ModelFamily& family) {
  if (!keys.has("architectures")) return;
  for (const auto& name : keys["architectures"].list(&JsonNode::text)) {
    for (const auto* other : model_families()) {
      keys.require(name != other->architecture || other == &family, "must have model_type \"",
                   other->model_type, "\", for architectures has ", name, ", got \"",
                   family.model_type, '"');
    }
  }
}

void refuse_what_is_not_implemented(const JsonNode& keys, const ModelFamily& family) {
  check_class(keys, family);
  refuse_unknown_keys(keys, family);
  if (keys.contains("hidden_act")) {  // null is no activation function
    keys["hidden_act"].require(keys["hidden_act"].value() == "silu", "must be \"silu\", got ",
                               keys["hidden_act"]);
  }
  for (const auto& key : fields_without_key(family)) {
    std::visit([&](auto member) { require_value(keys, key.name, family.defaults.*member); },
               key.field);
  }
  if (!has_key(family, "attention_bias")) require_value(keys, "attention_bias", false);
  require_value(keys, "attention_dropout", 0.0);
  require_value(keys, "use_sliding_window", false);
  if (!family.has_window_switch) require_value(keys, "sliding_window", nullptr);
  require_value(keys, "quantization_config", nullptr);
  require_value(keys, "pruned_heads", json::object());
}

void check_layer_types(const JsonNode& keys, std::int64_t layers) {
  if (!keys.has("layer_types")) return;
  const auto types = keys["layer_types"].elements();
  for (const auto& type : types) {
    type.require(type.text() == "full_attention", "must be \"full_attention\", got ", type);
  }
  keys["layer_types"].require(std::ssize(types) == layers, "must be of num_hidden_layers (", layers,
                              ") entries, got ", types.size());
}

/// Whether transformers takes null for a key that has a field.
bool takes_null(const ModelFamily& family, std::string_view key) {
  return key == "head_dim" || key == "mlp_only_layers" || key == "num_nextn_predict_layers" ||
         (key == "num_key_value_heads" && family.null_means_all_heads);
}

void read_field(const JsonNode& keys, const ConfigKey& key, const ModelFamily& family,
                CausalLMConfig& config) {
  const auto alias = std::ranges::find(family.aliases, key.name,
                                       &std::pair<std::string_view, std::string_view>::second);
  std::visit(
      [&](auto member) {
        if (alias == family.aliases.end()) {
          if (!takes_null(family, key.name)) refuse_null(keys, key.name, config.*member);
          read(keys, key.name, config.*member);
          return;
        }
        // One of the spellings may be null.
        if (!keys.has(alias->first)) refuse_null(keys, key.name, config.*member);
        if (!keys.has(key.name)) refuse_null(keys, alias->first, config.*member);
        read_either(keys, key.name, keys, alias->first, config.*member);
      },
      key.field);
}

constexpr const char* kAddsAuxiliaryLoss = "output_router_logits";  // in transformers

/// What config.json has of the keys that are passed over, unless other_keys says something else.
json usual_keys(const ModelFamily& family) {
  json keys = {{"sliding_window", nullptr}, {"use_cache", true}};
  if (has_key(family, "router_aux_loss_coef")) keys[kAddsAuxiliaryLoss] = true;
  return keys;
}

/// The keys that are passed over, where they are not as usual.
std::map<std::string, std::string> other_keys(const JsonNode& keys, const ModelFamily& family) {
  const auto usual = usual_keys(family);
  std::map<std::string, std::string> others;
  // False, if the file does not say.
  if (usual.contains(kAddsAuxiliaryLoss)) others.emplace(kAddsAuxiliaryLoss, "false");
  for (const auto& [key, value] : keys.value().items()) {
    if (!is_passed_over(family, key)) continue;
    others.erase(key);
    if (!usual.contains(key) || usual[key] != value) others.emplace(key, value.dump());
  }
  return others;
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
  check_layer_types(keys, config.num_hidden_layers);
  read_rope(keys, family, config);
  read_word<nn::ExpertWeights>(keys, "expert_weights", R"("pretransposed" or "hf")",
                               {{"pretransposed", nn::ExpertWeights::kPretransposed},
                                {"hf", nn::ExpertWeights::kHuggingFace}},
                               config.expert_weights);
  read_dtype(keys, config.dtype);
  config.other_keys = other_keys(keys, family);
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
  const auto root = JsonNode::parse(text, kMaxDepth, "model config");
  const auto& family = family_in(root);
  const auto subject = std::string(family.model_type) + " config";
  return read_config(JsonNode::parse(text, kMaxDepth, subject), family);
}

std::string to_json(const CausalLMConfig& config, std::optional<Dtype> stored) {
  const auto& family = family_of(config);
  json keys = usual_keys(family);
  for (const auto& [key, value] : config.other_keys) {
    keys[key] = parse_strict_json(value, /*max_depth=*/16, "CausalLMConfig: other_keys: " + key);
  }
  keys.update({{"architectures", {family.architecture}},
               {"attention_bias", false},
               {"attention_dropout", 0.0},
               {"hidden_act", "silu"},
               {"model_type", family.model_type},
               {"rope_scaling", nullptr},
               {"rope_theta", config.rope_theta},
               {"torch_dtype", to_string(stored.value_or(config.dtype))}});
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
  return keys.dump(/*indent=*/2) + "\n";
}

}  // namespace moegrad::models
