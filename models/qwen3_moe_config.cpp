// SPDX-License-Identifier: Apache-2.0
#include "models/qwen3_moe_config.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "framework/runtime/error.h"

namespace moegrad::models {
namespace {

using nlohmann::json;

template <class... Parts>
void require(bool ok, std::string_view key, const Parts&... parts) {
  check<ValueError>(ok, "qwen3_moe config: ", key, " must be ", parts...);
}

void require_positive(std::string_view key, std::int64_t value) {
  require(value >= 1, key, ">= 1, got ", value);
}

void assign(const json& value, std::string_view key, std::int64_t& field) {
  require(value.is_number_integer(), key, "an integer, got ", value);
  field = value.get<std::int64_t>();
}
void assign(const json& value, std::string_view key, double& field) {
  require(value.is_number(), key, "a number, got ", value);
  field = value.get<double>();
}
void assign(const json& value, std::string_view key, bool& field) {
  require(value.is_boolean(), key, "true or false, got ", value);
  field = value.get<bool>();
}
void assign(const json& value, std::string_view key, std::vector<std::int64_t>& field) {
  const auto is_integer = [](const json& item) { return item.is_number_integer(); };
  require(value.is_array() && std::ranges::all_of(value, is_integer), key,
          "a list of integers, got ", value);
  field = value.get<std::vector<std::int64_t>>();
}

/// Overwrites `field` when the key is there.
template <class Field>
void read(const json& keys, std::string_view key, Field& field) {
  const auto found = keys.find(key);
  if (found != keys.end() && !found->is_null()) assign(*found, key, field);
}

/// The same for a field that is spelt as one of two words.
template <class Field>
void read_word(const json& keys, std::string_view key, std::string_view first, Field if_first,
               std::string_view second, Field if_second, Field& field) {
  const auto found = keys.find(key);
  if (found == keys.end()) return;
  require(*found == first || *found == second, key, '"', first, "\" or \"", second, "\", got ",
          *found);
  field = *found == first ? if_first : if_second;
}

/// A key whose other values this model does not implement.
void require_value(const json& keys, std::string_view key, const json& implemented) {
  const auto found = keys.find(key);
  if (found != keys.end()) require(*found == implemented, key, implemented, ", got ", *found);
}

/// transformers 5 keeps rope_theta in here.
void read_rope_parameters(const json& keys, Qwen3MoeConfig& config) {
  const auto found = keys.find("rope_parameters");
  if (found == keys.end() || found->is_null()) return;
  require(found->is_object(), "rope_parameters", "an object, got ", *found);
  require_value(*found, "rope_type", "default");
  read(*found, "rope_theta", config.rope_theta);
}

Qwen3MoeConfig read_config(const json& keys) {
  require(keys.is_object(), "the file", "an object of keys, got ", keys);
  require_value(keys, "model_type", "qwen3_moe");
  require_value(keys, "hidden_act", "silu");
  require_value(keys, "attention_bias", false);
  require_value(keys, "attention_dropout", 0.0);
  require_value(keys, "use_sliding_window", false);
  require_value(keys, "rope_scaling", nullptr);

  Qwen3MoeConfig config;
  read(keys, "vocab_size", config.vocab_size);
  read(keys, "hidden_size", config.hidden_size);
  read(keys, "intermediate_size", config.intermediate_size);
  read(keys, "num_hidden_layers", config.num_hidden_layers);
  read(keys, "num_attention_heads", config.num_attention_heads);
  read(keys, "num_key_value_heads", config.num_key_value_heads);
  require_positive("num_attention_heads", config.num_attention_heads);
  config.head_dim = config.hidden_size / config.num_attention_heads;
  read(keys, "head_dim", config.head_dim);
  read(keys, "max_position_embeddings", config.max_position_embeddings);
  read(keys, "initializer_range", config.initializer_range);
  read(keys, "rms_norm_eps", config.rms_norm_eps);
  read(keys, "rope_theta", config.rope_theta);
  read_rope_parameters(keys, config);
  read(keys, "tie_word_embeddings", config.tie_word_embeddings);
  read(keys, "decoder_sparse_step", config.decoder_sparse_step);
  read(keys, "mlp_only_layers", config.mlp_only_layers);
  read(keys, "moe_intermediate_size", config.moe_intermediate_size);
  read(keys, "num_experts", config.num_experts);
  read(keys, "num_experts_per_tok", config.num_experts_per_tok);
  read(keys, "norm_topk_prob", config.norm_topk_prob);
  read(keys, "router_aux_loss_coef", config.router_aux_loss_coef);

  read_word(keys, "expert_weights", "pretransposed", nn::ExpertWeights::kPretransposed, "hf",
            nn::ExpertWeights::kHuggingFace, config.expert_weights);
  read_word(keys, "gathered_layout", "nz", Layout::kNZ, "nd", Layout::kND, config.gathered_layout);
  read_word(keys, "moegrad_dtype", "float32", Dtype::kFloat32, "float64", Dtype::kFloat64,
            config.dtype);
  config.validate();
  return config;
}

/// Elements of all parameters when a mixture layer has `experts` experts.
std::int64_t count_parameters(const Qwen3MoeConfig& c, std::int64_t experts) {
  const auto h = c.hidden_size, d = c.head_dim;
  const auto attention =
      2 * h * c.num_attention_heads * d + 2 * h * c.num_key_value_heads * d + 2 * d;
  const auto moe = c.num_experts * h + experts * 3 * h * c.moe_intermediate_size;
  const auto dense = 3 * h * c.intermediate_size;
  const auto moe_layers = c.num_moe_layers();
  return (c.tie_word_embeddings ? 1 : 2) * c.vocab_size * h + h +
         c.num_hidden_layers * (attention + 2 * h) + moe_layers * moe +
         (c.num_hidden_layers - moe_layers) * dense;
}

}  // namespace

bool Qwen3MoeConfig::is_moe_layer(std::int64_t i) const {
  const bool listed = std::ranges::find(mlp_only_layers, i) != mlp_only_layers.end();
  return !listed && num_experts > 0 && (i + 1) % decoder_sparse_step == 0;
}

std::int64_t Qwen3MoeConfig::num_moe_layers() const {
  std::int64_t layers = 0;
  for (std::int64_t i = 0; i < num_hidden_layers; ++i) layers += is_moe_layer(i) ? 1 : 0;
  return layers;
}

void Qwen3MoeConfig::validate() const {
  require_positive("vocab_size", vocab_size);
  require_positive("hidden_size", hidden_size);
  require_positive("intermediate_size", intermediate_size);
  require_positive("num_hidden_layers", num_hidden_layers);
  require_positive("num_attention_heads", num_attention_heads);
  require_positive("num_key_value_heads", num_key_value_heads);
  require(num_attention_heads % num_key_value_heads == 0, "num_attention_heads",
          "a multiple of num_key_value_heads (", num_key_value_heads, "), got ",
          num_attention_heads);
  require(head_dim >= 2 && head_dim % 2 == 0, "head_dim", "even and >= 2, got ", head_dim);
  require(initializer_range >= 0.0, "initializer_range", ">= 0, got ", initializer_range);
  require(rms_norm_eps > 0.0, "rms_norm_eps", "> 0, got ", rms_norm_eps);
  require(rope_theta > 0.0, "rope_theta", "> 0, got ", rope_theta);
  require_positive("decoder_sparse_step", decoder_sparse_step);
  for (const auto layer : mlp_only_layers) {
    require(0 <= layer && layer < num_hidden_layers, "mlp_only_layers", "in [0, ",
            num_hidden_layers, "), got ", layer);
  }
  require(num_experts >= 0, "num_experts", ">= 0, got ", num_experts);
  require(router_aux_loss_coef >= 0.0, "router_aux_loss_coef", ">= 0, got ", router_aux_loss_coef);
  if (num_experts > 0) {
    require_positive("moe_intermediate_size", moe_intermediate_size);
    require(1 <= num_experts_per_tok && num_experts_per_tok <= num_experts, "num_experts_per_tok",
            "in [1, ", num_experts, "] (num_experts), got ", num_experts_per_tok);
  }
  check<DtypeError>(is_floating(dtype), "qwen3_moe config: dtype must be float32 or float64, got ",
                    dtype);
}

Qwen3MoeConfig Qwen3MoeConfig::from_json(const std::string& path) {
  std::ifstream file(path);
  check<ValueError>(file.good(), "qwen3_moe config: cannot read ", path);
  std::ostringstream text;
  text << file.rdbuf();
  return parse_json(text.str());
}

Qwen3MoeConfig Qwen3MoeConfig::parse_json(std::string_view text) {
  try {
    return read_config(json::parse(text));
  } catch (const json::exception& error) {
    throw ValueError(std::string("qwen3_moe config: ") + error.what());
  }
}

Qwen3MoeConfig Qwen3MoeConfig::preset(std::string_view name) {
  Qwen3MoeConfig config;
  config.vocab_size = 256;
  config.max_position_embeddings = 4096;
  config.norm_topk_prob = true;
  config.num_key_value_heads = 2;
  // Narrow models learn faster from larger weights, and their few experts need a firmer balance.
  config.initializer_range = 0.05;
  config.router_aux_loss_coef = 0.01;
  if (name == "tiny") {
    config.hidden_size = 64;
    config.intermediate_size = 192;
    config.num_hidden_layers = 4;
    config.num_attention_heads = 4;
    config.head_dim = 16;
    config.moe_intermediate_size = 32;
    config.num_experts = 8;
    config.num_experts_per_tok = 2;
  } else if (name == "small") {
    config.hidden_size = 128;
    config.intermediate_size = 384;
    config.num_hidden_layers = 4;
    config.num_attention_heads = 4;
    config.head_dim = 32;
    config.moe_intermediate_size = 64;
    config.num_experts = 16;
    config.num_experts_per_tok = 4;
  } else {
    check<ValueError>(name == "medium",
                      "qwen3_moe config: preset must be tiny, small or medium, got ", name);
    config.hidden_size = 256;
    config.intermediate_size = 768;
    config.num_hidden_layers = 8;
    config.num_attention_heads = 8;
    config.head_dim = 32;
    config.moe_intermediate_size = 128;
    config.num_experts = 32;
    config.num_experts_per_tok = 4;
  }
  return config;
}

std::int64_t parameter_count(const Qwen3MoeConfig& config) {
  return count_parameters(config, config.num_experts);
}

std::int64_t active_parameter_count(const Qwen3MoeConfig& config) {
  return count_parameters(config, std::min(config.num_experts, config.num_experts_per_tok));
}

double flops_per_token(const Qwen3MoeConfig& config, std::int64_t length) {
  const auto h = config.hidden_size;
  // Not multiplied with the token: norm weights, and the embedding unless it is the tied head.
  const auto norms =
      (2 * config.num_hidden_layers + 1) * h + config.num_hidden_layers * 2 * config.head_dim;
  const auto look_up = config.tie_word_embeddings ? 0 : config.vocab_size * h;
  const auto weights = active_parameter_count(config) - norms - look_up;
  const auto attention_width =
      config.num_hidden_layers * config.num_attention_heads * config.head_dim;
  const double seen = static_cast<double>(length + 1) / 2.0;
  return 6.0 * static_cast<double>(weights) + 12.0 * static_cast<double>(attention_width) * seen;
}

}  // namespace moegrad::models
