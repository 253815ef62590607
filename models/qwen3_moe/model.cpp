// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens, H hidden size, V vocabulary.
#include "models/qwen3_moe/model.h"

#include <string>
#include <utility>

#include "framework/runtime/error.h"
#include "framework/tensor/meta.h"
#include "nn/init.h"
#include "ops/linear_cross_entropy.h"

namespace moegrad::models {
namespace {

const Qwen3MoeConfig& validated(const Qwen3MoeConfig& config) {
  config.validate();
  return config;
}

}  // namespace

Qwen3Moe::Qwen3Moe(const Qwen3MoeConfig& config, std::uint64_t seed)
    : config_(validated(config)),
      embed_tokens_({.num_embeddings = config.vocab_size,
                     .embedding_dim = config.hidden_size,
                     .dtype = config.dtype}),
      norm_({.dim = config.hidden_size, .eps = config.rms_norm_eps, .dtype = config.dtype}),
      lm_head_(config.tie_word_embeddings
                   ? embed_tokens_.weight()
                   : Tensor::zeros({config.vocab_size, config.hidden_size}, config.dtype)) {
  register_module("model.embed_tokens", embed_tokens_);
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
    register_module("model.layers." + std::to_string(i), layers_.emplace_back(config, i));
  }
  register_module("model.norm", norm_);
  register_module("lm_head", lm_head_);
  if (!meta_enabled()) init_weights(seed);
}

void Qwen3Moe::init_weights(std::uint64_t seed) {
  nn::init_weights(*this, seed, config_.initializer_range);
}

Qwen3Moe::Output Qwen3Moe::forward(const Tensor& tokens,
                                   const std::optional<Documents>& given_documents,
                                   const ForwardOptions& options) {
  check<ShapeError>(tokens.ndim() == 1, "Qwen3Moe: tokens must be [T], got ", tokens.shape());
  const auto documents = given_documents.value_or(Documents::one(tokens.dim(0)));
  check<ValueError>(documents.tokens() == tokens.dim(0), "Qwen3Moe: documents must have the ",
                    tokens.dim(0), " tokens, got ", documents.tokens());
  Tensor positions = options.positions;
  if (positions.defined()) {
    check<ShapeError>(positions.shape() == tokens.shape(), "Qwen3Moe: positions must be ",
                      tokens.shape(), " to match tokens, got ", positions.shape());
  } else {
    positions = documents.positions();
  }
  const auto* const replay = options.replay_expert_indices;
  check<ValueError>(replay == nullptr || std::ssize(*replay) == config_.num_moe_layers(),
                    "Qwen3Moe: replay_expert_indices must have ", config_.num_moe_layers(),
                    " entries, one per mixture layer, got ",
                    replay == nullptr ? 0 : replay->size());

  const nn::SequenceContext context = {
      .documents = documents,
      .rope = ops::rope_table(positions, config_.head_dim, config_.rope_theta, config_.dtype)};
  Output output;
  Tensor hidden = embed_tokens_(tokens);  // [T, H]
  if (options.output_hidden_states) output.hidden_states.push_back(hidden);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    auto& layer = layers_[i];
    const bool replayed = layer.is_moe() && replay != nullptr;
    const Tensor indices = replayed ? (*replay)[output.expert_indices.size()] : Tensor();
    auto result = layer(hidden, context, indices);
    hidden = result.hidden;
    if (options.output_hidden_states) output.hidden_states.push_back(hidden);
    if (!layer.is_moe()) continue;
    output.router_logits.push_back(result.router_logits);
    output.routing_weights.push_back(result.routing_weights);
    output.expert_indices.push_back(result.expert_indices);
    output.tokens_per_expert.push_back(std::move(result.tokens_per_expert));
  }
  const Tensor normed = norm_(hidden);
  if (options.output_hidden_states) output.hidden_states.back() = normed;
  if (!options.targets.defined()) {
    output.logits = lm_head_(normed);  // [T, V]
    return output;
  }
  const auto cross_entropy = [](nn::Linear& head, const Tensor& x, const Tensor& targets) {
    return ops::linear_cross_entropy(x, head.weight(), targets, {.denominator = 1.0});
  };
  output.ce_sum = lm_head_.call_method(cross_entropy, normed, options.targets);
  return output;
}

void for_each_tensor(Qwen3Moe::Output& output, const nn::TensorVisitor& visit) {
  nn::visit_tensors(visit, output.logits, output.ce_sum, output.router_logits,
                    output.routing_weights, output.expert_indices, output.hidden_states);
}

}  // namespace moegrad::models
