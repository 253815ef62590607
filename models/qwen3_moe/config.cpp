// SPDX-License-Identifier: Apache-2.0
#include "models/qwen3_moe/config.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "framework/runtime/error.h"

namespace moegrad::models {
namespace {

template <class... Parts>
void require(bool ok, std::string_view key, const Parts&... parts) {
  check<ValueError>(ok, "qwen3_moe config: ", key, " must be ", parts...);
}

/// A larger size must be a mistake, and products of such sizes would overflow.
constexpr std::int64_t kMaxSize = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMaxLayers = 10'000;  // their shapes alone take a second
constexpr double kMaxParameters = 0x1p53;    // so that sums of their bytes are integers

void require_positive(std::string_view key, std::int64_t value) {
  require(value >= 1, key, ">= 1, got ", value);
  require(value <= kMaxSize, key, "<= ", kMaxSize, ", got ", value);
}

/// The number of elements of all parameters if a mixture layer has `experts` experts. Number is
/// double if there might be too many for an integer.
template <class Number>
Number count_parameters(const Qwen3MoeConfig& c, std::int64_t experts) {
  const auto number = [](std::int64_t value) { return static_cast<Number>(value); };
  const auto h = number(c.hidden_size), d = number(c.head_dim);
  const auto attention = 2 * h * number(c.num_attention_heads + c.num_key_value_heads) * d + 2 * d;
  const auto moe =
      number(c.num_experts) * h + number(experts) * 3 * h * number(c.moe_intermediate_size);
  const auto dense = 3 * h * number(c.intermediate_size);
  const auto moe_layers = c.num_moe_layers();
  return number(c.tie_word_embeddings ? 1 : 2) * number(c.vocab_size) * h + h +
         number(c.num_hidden_layers) * (attention + 2 * h) + number(moe_layers) * moe +
         number(c.num_hidden_layers - moe_layers) * dense;
}

struct ByteModel {
  std::int64_t hidden, layers, heads, experts;
  std::int64_t per_token = 2;
};

// Narrow models learn faster with larger initial weights. Their few experts need a stronger
// balance.
Qwen3MoeConfig byte_model(const ByteModel& sizes) {
  Qwen3MoeConfig config;
  config.vocab_size = 256;
  config.max_position_embeddings = 4096;
  config.norm_topk_prob = true;
  config.initializer_range = 0.05;
  config.router_aux_loss_coef = 0.01;
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

// As https://huggingface.co/Qwen/Qwen3-30B-A3B and Qwen3-235B-A22B: 128 experts, 8 per token.
Qwen3MoeConfig released_model(std::int64_t hidden, std::int64_t layers, std::int64_t heads,
                              std::int64_t intermediate, std::int64_t moe_intermediate) {
  Qwen3MoeConfig config;
  config.vocab_size = 151936;
  config.max_position_embeddings = 40960;
  config.norm_topk_prob = true;
  config.rope_theta = 1e6;
  config.router_aux_loss_coef = 0.001;
  config.hidden_size = hidden;
  config.intermediate_size = intermediate;
  config.num_hidden_layers = layers;
  config.num_attention_heads = heads;
  config.num_key_value_heads = 4;
  config.head_dim = 128;
  config.moe_intermediate_size = moe_intermediate;
  config.num_experts = 128;
  config.num_experts_per_tok = 8;
  return config;
}

/// The same decoder with dense layers alone.
Qwen3MoeConfig without_experts(Qwen3MoeConfig config) {
  const Qwen3MoeConfig defaults;
  config.num_experts = 0;
  config.moe_intermediate_size = defaults.moe_intermediate_size;
  config.num_experts_per_tok = defaults.num_experts_per_tok;
  config.norm_topk_prob = defaults.norm_topk_prob;
  config.router_aux_loss_coef = defaults.router_aux_loss_coef;
  return config;
}

// As https://huggingface.co/Qwen/Qwen3-0.6B.
Qwen3MoeConfig released_dense_model() {
  auto config = without_experts(released_model(1024, 28, 16, 3072, 0));
  config.num_key_value_heads = 8;
  config.tie_word_embeddings = true;
  return config;
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
  require(1 <= num_hidden_layers && num_hidden_layers <= kMaxLayers, "num_hidden_layers", "in [1, ",
          kMaxLayers, "], got ", num_hidden_layers);
  require_positive("num_attention_heads", num_attention_heads);
  require_positive("num_key_value_heads", num_key_value_heads);
  require(num_attention_heads % num_key_value_heads == 0, "num_attention_heads",
          "a multiple of num_key_value_heads (", num_key_value_heads, "), got ",
          num_attention_heads);
  require(head_dim >= 2 && head_dim % 2 == 0, "head_dim", "even and >= 2, got ", head_dim);
  require_positive("head_dim", head_dim);
  require(initializer_range >= 0.0, "initializer_range", ">= 0, got ", initializer_range);
  require(rms_norm_eps > 0.0, "rms_norm_eps", "> 0, got ", rms_norm_eps);
  require(rope_theta > 0.0, "rope_theta", "> 0, got ", rope_theta);
  require_positive("decoder_sparse_step", decoder_sparse_step);
  require(std::ssize(mlp_only_layers) <= num_hidden_layers, "mlp_only_layers",
          "of at most num_hidden_layers (", num_hidden_layers, ") entries, got ",
          mlp_only_layers.size());
  for (const auto layer : mlp_only_layers) {
    require(0 <= layer && layer < num_hidden_layers, "mlp_only_layers", "in [0, ",
            num_hidden_layers, "), got ", layer);
  }
  require(0 <= num_experts && num_experts <= kMaxSize, "num_experts", "in [0, ", kMaxSize,
          "], got ", num_experts);
  require(router_aux_loss_coef >= 0.0, "router_aux_loss_coef", ">= 0, got ", router_aux_loss_coef);
  if (num_experts > 0) {
    require_positive("moe_intermediate_size", moe_intermediate_size);
    require(1 <= num_experts_per_tok && num_experts_per_tok <= num_experts, "num_experts_per_tok",
            "in [1, ", num_experts, "] (num_experts), got ", num_experts_per_tok);
  }
  const auto parameters = count_parameters<double>(*this, num_experts);
  require(parameters <= kMaxParameters, "the model", "of at most 2^53 elements, got ", parameters);
  check<DtypeError>(is_floating(dtype), "qwen3_moe config: dtype must be float32 or float64, got ",
                    dtype);
}

Qwen3MoeConfig Qwen3MoeConfig::preset(std::string_view name) {
  if (name == "tiny") return byte_model({.hidden = 64, .layers = 4, .heads = 4, .experts = 8});
  if (name == "small") {
    return byte_model({.hidden = 128, .layers = 4, .heads = 4, .experts = 16, .per_token = 4});
  }
  if (name == "medium") {
    return byte_model({.hidden = 256, .layers = 8, .heads = 8, .experts = 32, .per_token = 4});
  }
  if (name == "tiny-dense") {
    return without_experts(byte_model({.hidden = 64, .layers = 4, .heads = 4, .experts = 0}));
  }
  if (name == "qwen3-0.6b") return released_dense_model();
  if (name == "qwen3-30b-a3b") return released_model(2048, 48, 32, 6144, 768);
  check<ValueError>(name == "qwen3-235b-a22b",
                    "qwen3_moe config: preset must be tiny, small, medium, tiny-dense, qwen3-0.6b, "
                    "qwen3-30b-a3b or qwen3-235b-a22b, got ",
                    name);
  return released_model(4096, 94, 64, 12288, 1536);
}

std::int64_t parameter_count(const Qwen3MoeConfig& config) {
  return count_parameters<std::int64_t>(config, config.num_experts);
}

std::int64_t active_parameter_count(const Qwen3MoeConfig& config) {
  return count_parameters<std::int64_t>(config,
                                        std::min(config.num_experts, config.num_experts_per_tok));
}

double flops_per_token(const Qwen3MoeConfig& config, std::int64_t length) {
  const auto h = config.hidden_size;
  // These weights do not multiply the token: norms, and the embedding unless it is the tied head.
  const auto norms =
      (2 * config.num_hidden_layers + 1) * h + config.num_hidden_layers * 2 * config.head_dim;
  const auto look_up = config.tie_word_embeddings ? 0 : config.vocab_size * h;
  const auto weights = active_parameter_count(config) - norms - look_up;
  const auto attention_width =
      config.num_hidden_layers * config.num_attention_heads * config.head_dim;
  const double seen = static_cast<double>(length + 1) / 2.0;
  return 6.0 * static_cast<double>(weights) + 12.0 * static_cast<double>(attention_width) * seen;
}

double training_flops(const Qwen3MoeConfig& config, const Documents& documents) {
  double total = 0;
  const auto& offsets = documents.offsets();
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    const auto length = offsets[i + 1] - offsets[i];
    total += static_cast<double>(length) * flops_per_token(config, length);
  }
  return total;
}

}  // namespace moegrad::models
