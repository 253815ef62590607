// SPDX-License-Identifier: Apache-2.0
#include "models/causal_lm/config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "framework/runtime/error.h"
#include "models/causal_lm/family.h"

namespace moegrad::models {
namespace {

using Config = CausalLMConfig;

/// What the values of a configuration must be; errors begin with its model_type.
class Requirement {
 public:
  explicit Requirement(const Config& config) : family_(&family_of(config)) {}

  template <class... Parts>
  void operator()(bool ok, std::string_view key, const Parts&... parts) const {
    check<ValueError>(ok, model_type(), " config: ", key, " must be ", parts...);
  }
  void positive(std::string_view key, std::int64_t value) const {
    (*this)(value >= 1, key, ">= 1, got ", value);
    (*this)(value <= kMaxSize, key, "<= ", kMaxSize, ", got ", value);
  }
  void at_least_0(std::string_view key, std::int64_t value) const {
    (*this)(0 <= value && value <= kMaxSize, key, "in [0, ", kMaxSize, "], got ", value);
  }
  std::string_view model_type() const { return family_->model_type; }
  /// What the family's config.json calls a field.
  std::string_view key(ConfigKey::Field field, std::string_view otherwise) const {
    const auto found = std::ranges::find(family_->keys, field, &ConfigKey::field);
    return found == family_->keys.end() ? otherwise : found->name;
  }

  /// A larger size must be a mistake, and products of such sizes would overflow.
  static constexpr std::int64_t kMaxSize = std::numeric_limits<std::int32_t>::max();

 private:
  const ModelFamily* family_;
};

constexpr std::int64_t kMaxLayers = 10'000;  // their shapes alone take a second
constexpr double kMaxParameters = 0x1p53;    // so that sums of their bytes are integers

void check_attention(const Config& c, const Requirement& require) {
  require.positive("num_attention_heads", c.num_attention_heads);
  require.positive("num_key_value_heads", c.num_key_value_heads);
  require(c.num_attention_heads % c.num_key_value_heads == 0, "num_attention_heads",
          "a multiple of num_key_value_heads (", c.num_key_value_heads, "), got ",
          c.num_attention_heads);
  require(c.head_dim >= 2 && c.head_dim % 2 == 0, "head_dim", "even and >= 2, got ", c.head_dim);
  require.positive("head_dim", c.head_dim);
  require(c.num_attention_heads <= Requirement::kMaxSize / c.head_dim, "num_attention_heads",
          "at most ", Requirement::kMaxSize, " / head_dim (", c.head_dim, "), got ",
          c.num_attention_heads);
  require(std::isfinite(c.rope_theta) && c.rope_theta > 0.0, "rope_theta", "> 0, got ",
          c.rope_theta);
  require(0 < c.partial_rotary_factor && c.partial_rotary_factor <= 1, "partial_rotary_factor",
          "in (0, 1], got ", c.partial_rotary_factor);
  require(c.rotary_dim() >= 2 && c.rotary_dim() % 2 == 0, "partial_rotary_factor",
          "such that head_dim (", c.head_dim, ") times it is even, got ", c.partial_rotary_factor);
}

void check_layers(const Config& c, const Requirement& require) {
  require(1 <= c.num_hidden_layers && c.num_hidden_layers <= kMaxLayers, "num_hidden_layers",
          "in [1, ", kMaxLayers, "], got ", c.num_hidden_layers);
  require.positive("decoder_sparse_step", c.decoder_sparse_step);
  require(std::ssize(c.mlp_only_layers) <= c.num_hidden_layers, "mlp_only_layers",
          "of at most num_hidden_layers (", c.num_hidden_layers, ") entries, got ",
          c.mlp_only_layers.size());
  for (const auto layer : c.mlp_only_layers) {
    require(0 <= layer && layer < c.num_hidden_layers, "mlp_only_layers", "in [0, ",
            c.num_hidden_layers, "), got ", layer);
  }
  require.at_least_0("first_k_dense_replace", c.first_k_dense_replace);
  require.at_least_0("num_nextn_predict_layers", c.num_nextn_predict_layers);
}

void check_mixture(const Config& c, const Requirement& require) {
  require(std::isfinite(c.router_aux_loss_coef) && c.router_aux_loss_coef >= 0.0,
          "router_aux_loss_coef", ">= 0, got ", c.router_aux_loss_coef);
  const bool may_be_dense = c.model_type == ModelType::kQwen3Moe;
  const auto experts = require.key(&Config::num_experts, "num_experts");
  require(may_be_dense || c.num_experts != 0, experts, ">= 1, got 0");
  require.at_least_0(experts, c.num_experts);
  if (c.num_experts == 0) return;
  require.positive(require.key(&Config::moe_intermediate_size, "moe_intermediate_size"),
                   c.moe_intermediate_size);
  require(1 <= c.num_experts_per_tok && c.num_experts_per_tok <= c.num_experts,
          "num_experts_per_tok", "in [1, ", c.num_experts, "] (", experts, "), got ",
          c.num_experts_per_tok);
  require(1 <= c.n_group && c.num_experts % c.n_group == 0, "n_group", "a divisor of ", experts,
          " (", c.num_experts, "), got ", c.n_group);
  require(1 <= c.topk_group && c.topk_group <= c.n_group, "topk_group", "in [1, ", c.n_group,
          "] (n_group), got ", c.topk_group);
  const auto within_reach = c.topk_group * (c.num_experts / c.n_group);
  require(c.num_experts_per_tok <= within_reach, "num_experts_per_tok", "at most the ",
          within_reach, " experts of topk_group (", c.topk_group, ") groups, got ",
          c.num_experts_per_tok);
  require(std::isfinite(c.routed_scaling_factor) && c.routed_scaling_factor > 0,
          "routed_scaling_factor", "> 0, got ", c.routed_scaling_factor);
  require(0 <= c.router_jitter_noise && c.router_jitter_noise < 1, "router_jitter_noise",
          "in [0, 1), got ", c.router_jitter_noise);
  require.at_least_0("n_shared_experts", c.n_shared_experts);
  require(c.n_shared_experts <= Requirement::kMaxSize / c.moe_intermediate_size, "n_shared_experts",
          "at most ", Requirement::kMaxSize, " / moe_intermediate_size (", c.moe_intermediate_size,
          "), got ", c.n_shared_experts);
  require.at_least_0("shared_expert_intermediate_size", c.shared_expert_intermediate_size);
}

/// The number of elements of all parameters if a mixture layer has `experts` experts. Number is
/// double if there might be too many for an integer.
template <class Number>
Number count_parameters(const Config& c, std::int64_t experts) {
  const auto number = [](std::int64_t value) { return static_cast<Number>(value); };
  const auto h = number(c.hidden_size), d = number(c.head_dim);
  const auto heads = number(c.num_attention_heads + c.num_key_value_heads);
  const auto bias = c.qkv_bias ? (heads + number(c.num_key_value_heads)) * d : number(0);
  const auto attention = 2 * h * heads * d + bias + number(c.use_qk_norm ? 2 : 0) * d;
  const auto own_gate = number(c.shared_expert_intermediate_size > 0 ? 1 : 0) * h;
  const auto shared = number(c.n_shared_experts) * number(c.moe_intermediate_size) +
                      number(c.shared_expert_intermediate_size);
  const auto moe = number(c.num_experts) * h + 3 * h * shared + own_gate +
                   number(experts) * 3 * h * number(c.moe_intermediate_size);
  const auto dense = 3 * h * number(c.intermediate_size);
  const auto moe_layers = c.num_moe_layers();
  return number(c.tie_word_embeddings ? 1 : 2) * number(c.vocab_size) * h + h +
         number(c.num_hidden_layers) * (attention + 2 * h) + number(moe_layers) * moe +
         number(c.num_hidden_layers - moe_layers) * dense;
}

}  // namespace

bool Config::is_moe_layer(std::int64_t i) const {
  const bool listed = std::ranges::find(mlp_only_layers, i) != mlp_only_layers.end();
  return !listed && num_experts > 0 && i >= first_k_dense_replace &&
         (i + 1) % decoder_sparse_step == 0;
}

std::int64_t Config::num_moe_layers() const {
  std::int64_t layers = 0;
  for (std::int64_t i = 0; i < num_hidden_layers; ++i) layers += is_moe_layer(i) ? 1 : 0;
  return layers;
}

nn::MoE::Config Config::mixture() const {
  return {.hidden_size = hidden_size,
          .intermediate_size = moe_intermediate_size,
          .num_experts = num_experts,
          .top_k = num_experts_per_tok,
          .norm_topk_prob = norm_topk_prob,
          .scores = router_scores,
          .num_groups = n_group,
          .topk_groups = topk_group,
          .routed_scaling_factor = routed_scaling_factor,
          .correction_bias = correction_bias,
          .shared_intermediate_size =
              n_shared_experts * moe_intermediate_size + shared_expert_intermediate_size,
          .shared_expert_gate = shared_expert_intermediate_size > 0,
          .expert_weights = expert_weights,
          .dtype = dtype};
}

std::int64_t Config::rotary_dim() const {
  return static_cast<std::int64_t>(static_cast<double>(head_dim) * partial_rotary_factor);
}

void Config::validate() const {
  const Requirement require(*this);
  check_fields_without_key(*this);
  require.positive("vocab_size", vocab_size);
  require.positive("hidden_size", hidden_size);
  require.positive("intermediate_size", intermediate_size);
  check_layers(*this, require);
  check_attention(*this, require);
  require(std::isfinite(initializer_range) && initializer_range >= 0.0, "initializer_range",
          ">= 0, got ", initializer_range);
  require(std::isfinite(rms_norm_eps) && rms_norm_eps > 0.0, "rms_norm_eps", "> 0, got ",
          rms_norm_eps);
  check_mixture(*this, require);
  const auto parameters = count_parameters<double>(*this, num_experts);
  require(parameters <= kMaxParameters, "the model", "of at most 2^53 elements, got ", parameters);
  check<DtypeError>(is_floating(dtype), require.model_type(),
                    " config: dtype must be float32 or float64, got ", dtype);
}

Config Config::of(ModelType type) {
  Config any;
  any.model_type = type;
  return family_of(any).defaults;
}

Config Config::preset(std::string_view name) {
  for (const auto* family : model_families()) {
    for (const auto& [preset, config] : family->presets) {
      if (preset == name) return config;
    }
  }
  throw ValueError("model config: preset must be " + listed(preset_names()) + ", got " +
                   std::string(name));
}

std::vector<std::string_view> Config::preset_names() {
  std::vector<std::string_view> names;
  for (const auto* family : model_families()) {
    for (const auto& [preset, config] : family->presets) names.push_back(preset);
  }
  return names;
}

std::string_view to_string(ModelType type) { return family_of(Config::of(type)).model_type; }

std::int64_t parameter_count(const CausalLMConfig& config) {
  return count_parameters<std::int64_t>(config, config.num_experts);
}

std::int64_t active_parameter_count(const CausalLMConfig& config) {
  return count_parameters<std::int64_t>(config,
                                        std::min(config.num_experts, config.num_experts_per_tok));
}

double flops_per_token(const CausalLMConfig& config, std::int64_t length) {
  const auto h = config.hidden_size;
  // These parameters do not multiply the token: norms, biases, and the embedding unless it is the
  // tied head.
  const auto head_norms = config.use_qk_norm ? 2 * config.head_dim : 0;
  const auto biases =
      config.qkv_bias
          ? (config.num_attention_heads + 2 * config.num_key_value_heads) * config.head_dim
          : 0;
  const auto vectors =
      (2 * config.num_hidden_layers + 1) * h + config.num_hidden_layers * (head_norms + biases);
  const auto look_up = config.tie_word_embeddings ? 0 : config.vocab_size * h;
  const auto weights = active_parameter_count(config) - vectors - look_up;
  const auto attention_width =
      config.num_hidden_layers * config.num_attention_heads * config.head_dim;
  const double seen = static_cast<double>(length + 1) / 2.0;
  return 6.0 * static_cast<double>(weights) + 12.0 * static_cast<double>(attention_width) * seen;
}

double training_flops(const CausalLMConfig& config, const Documents& documents) {
  double total = 0;
  const auto& offsets = documents.offsets();
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    const auto length = offsets[i + 1] - offsets[i];
    total += static_cast<double>(length) * flops_per_token(config, length);
  }
  return total;
}

}  // namespace moegrad::models
