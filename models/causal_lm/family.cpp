// SPDX-License-Identifier: Apache-2.0
#include "models/causal_lm/family.h"

#include <algorithm>
#include <iterator>
#include <ostream>
#include <sstream>
#include <string>

#include "framework/runtime/error.h"
#include "models/families/families.h"

namespace moegrad::models {
namespace {

using Config = CausalLMConfig;

/// The fields that not every family has a key for. Errors call them as the fields are called.
const std::vector<ConfigKey>& attention_fields() {
  static const std::vector<ConfigKey> fields = {
      {"qkv_bias", &Config::qkv_bias},
      {"use_qk_norm", &Config::use_qk_norm},
      {"partial_rotary_factor", &Config::partial_rotary_factor}};
  return fields;
}

const std::vector<ConfigKey>& mixture_fields() {
  static const std::vector<ConfigKey> fields = {
      {"decoder_sparse_step", &Config::decoder_sparse_step},
      {"mlp_only_layers", &Config::mlp_only_layers},
      {"first_k_dense_replace", &Config::first_k_dense_replace},
      {"norm_topk_prob", &Config::norm_topk_prob},
      {"n_group", &Config::n_group},
      {"topk_group", &Config::topk_group},
      {"routed_scaling_factor", &Config::routed_scaling_factor},
      {"correction_bias", &Config::correction_bias},
      {"router_jitter_noise", &Config::router_jitter_noise},
      {"n_shared_experts", &Config::n_shared_experts},
      {"shared_expert_intermediate_size", &Config::shared_expert_intermediate_size},
      {"router_aux_loss_coef", &Config::router_aux_loss_coef},
      {"num_nextn_predict_layers", &Config::num_nextn_predict_layers}};
  return fields;
}

void write_value(std::ostream& out, bool value) { out << (value ? "true" : "false"); }
void write_value(std::ostream& out, const std::vector<std::int64_t>& list) {
  out << '[';
  for (std::size_t i = 0; i < list.size(); ++i) out << (i > 0 ? ", " : "") << list[i];
  out << ']';
}
template <class Number>
void write_value(std::ostream& out, Number value) {
  out << value;
}

template <class Value>
std::string text_of(const Value& value) {
  std::ostringstream out;
  write_value(out, value);
  return out.str();
}

std::vector<ConfigKey> without_key(const ModelFamily& family,
                                   const std::vector<ConfigKey>& fields) {
  std::vector<ConfigKey> without;
  std::ranges::copy_if(fields, std::back_inserter(without), [&](const ConfigKey& field) {
    return std::ranges::find(family.keys, field.field, &ConfigKey::field) == family.keys.end();
  });
  return without;
}

void check_fields(const Config& config, const std::vector<ConfigKey>& fields) {
  const auto& family = family_of(config);
  for (const auto& [name, field] : without_key(family, fields)) {
    std::visit(
        [&, name = name](auto member) {
          check<ValueError>(config.*member == family.defaults.*member, family.model_type,
                            " config: ", name, " must be ", text_of(family.defaults.*member),
                            " (a ", family.model_type, " has no key for it), got ",
                            text_of(config.*member));
        },
        field);
  }
}

}  // namespace

const std::vector<const ModelFamily*>& model_families() {
  static const std::vector<const ModelFamily*> families = {&qwen3_moe_family(), &qwen3_family(),
                                                           &qwen2_moe_family(), &mixtral_family(),
                                                           &glm4_moe_family()};
  return families;
}

const ModelFamily& family_of(const Config& config) {
  if (config.model_type == ModelType::kQwen3Moe && config.num_experts == 0) return qwen3_family();
  const auto& families = model_families();
  return **std::ranges::find_if(families, [&](const ModelFamily* family) {
    return family->defaults.model_type == config.model_type;
  });
}

std::string listed(const std::vector<std::string_view>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 < names.size() ? ", " : " or ";
    text += names[i];
  }
  return text;
}

const std::vector<ConfigKey>& common_keys() {
  static const std::vector<ConfigKey> keys = {
      {"vocab_size", &Config::vocab_size},
      {"hidden_size", &Config::hidden_size},
      {"num_hidden_layers", &Config::num_hidden_layers},
      {"num_attention_heads", &Config::num_attention_heads},
      {"num_key_value_heads", &Config::num_key_value_heads},
      {"head_dim", &Config::head_dim},
      {"max_position_embeddings", &Config::max_position_embeddings},
      {"initializer_range", &Config::initializer_range},
      {"rms_norm_eps", &Config::rms_norm_eps},
      {"tie_word_embeddings", &Config::tie_word_embeddings}};
  return keys;
}

std::vector<ConfigKey> fields_without_key(const ModelFamily& family) {
  auto fields = without_key(family, attention_fields());
  std::ranges::copy(without_key(family, mixture_fields()), std::back_inserter(fields));
  return fields;
}

void check_fields_without_key(const Config& config) {
  check_fields(config, attention_fields());
  if (config.num_experts == 0) return;  // fields of mixtures do nothing
  check_fields(config, mixture_fields());
  const auto& family = family_of(config);
  const auto name_of = [](nn::RouterScores scores) {
    return scores == nn::RouterScores::kSigmoid ? "kSigmoid" : "kSoftmax";
  };
  check<ValueError>(config.router_scores == family.defaults.router_scores, family.model_type,
                    " config: router_scores must be ", name_of(family.defaults.router_scores),
                    " (a ", family.model_type, " has no key for it), got ",
                    name_of(config.router_scores));
}

// Narrow models learn faster with larger initial weights. Their few experts need a stronger
// balance.
Config byte_model(const Config& defaults, const ByteModelSizes& sizes) {
  auto config = defaults;
  config.vocab_size = 256;
  config.max_position_embeddings = 4096;
  config.norm_topk_prob = true;
  config.initializer_range = 0.05;
  config.router_aux_loss_coef = 0.01;
  config.rms_norm_eps = 1e-6;
  config.rope_theta = 10000;
  config.hidden_size = sizes.hidden;
  config.intermediate_size = 3 * sizes.hidden;
  config.num_hidden_layers = sizes.layers;
  config.num_attention_heads = sizes.heads;
  config.num_key_value_heads = 2;
  config.head_dim = sizes.hidden / sizes.heads;
  config.moe_intermediate_size = sizes.hidden / 2;
  config.num_experts = sizes.experts;
  config.num_experts_per_tok = sizes.per_token;
  return config;
}

}  // namespace moegrad::models
