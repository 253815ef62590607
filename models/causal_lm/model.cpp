// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens, H hidden size, V vocabulary.
#include "models/causal_lm/model.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <utility>

#include "framework/autograd/weight_use.h"
#include "framework/runtime/error.h"
#include "framework/tensor/meta.h"
#include "nn/init.h"
#include "ops/linear_cross_entropy.h"

namespace moegrad::models {
namespace {

const CausalLMConfig& validated(const CausalLMConfig& config) {
  config.validate();
  return config;
}

}  // namespace

CausalLM::CausalLM(const CausalLMConfig& config, std::uint64_t seed, const CausalLMPart& part)
    : config_(validated(config)), begin_(part.begin) {
  const auto begin = part.begin, end = part.end.value_or(config.num_hidden_layers);
  check<ValueError>(0 <= begin && begin <= end && end <= config.num_hidden_layers,
                    "CausalLM: the layers of a part must be within [0, ", config.num_hidden_layers,
                    "), got [", begin, ", ", end, ")");
  check<ValueError>(!config.tie_word_embeddings || part.embedding == part.head,
                    "CausalLM: tied word embeddings must be in one part, got a part with ",
                    part.embedding ? "the embedding" : "the head", " alone");
  if (part.embedding) {
    register_module("model.embed_tokens",
                    embed_tokens_.emplace(nn::Embedding::Config{.num_embeddings = config.vocab_size,
                                                                .embedding_dim = config.hidden_size,
                                                                .dtype = config.dtype}));
  }
  for (auto i = begin; i < end; ++i) {
    register_module("model.layers." + std::to_string(i), layers_.emplace_back(config, i));
  }
  if (part.head) {
    register_module("model.norm", norm_.emplace(nn::RMSNorm::Config{.dim = config.hidden_size,
                                                                    .eps = config.rms_norm_eps,
                                                                    .dtype = config.dtype}));
    register_module(
        "lm_head",
        lm_head_.emplace(config.tie_word_embeddings
                             ? embed_tokens_->weight()
                             : Tensor::zeros({config.vocab_size, config.hidden_size}, config.dtype),
                         Tensor(), ops::kLinearCrossEntropyRows));
  }
  if (!meta_enabled()) init_weights(seed);
}

void CausalLM::init_weights(std::uint64_t seed) {
  nn::init_weights(*this, seed, config_.initializer_range);
}

CausalLM::Output CausalLM::forward(const Tensor& tokens,
                                   const std::optional<Documents>& given_documents,
                                   const ForwardOptions& options) {
  check<ShapeError>(tokens.ndim() == 1, "CausalLM: tokens must be [T], got ", tokens.shape());
  const auto documents = given_documents.value_or(Documents::one(tokens.dim(0)));
  check<ValueError>(documents.tokens() == tokens.dim(0), "CausalLM: documents must have the ",
                    tokens.dim(0), " tokens, got ", documents.tokens());
  Tensor positions = options.positions;
  if (positions.defined()) {
    check<ShapeError>(positions.shape() == tokens.shape(), "CausalLM: positions must be ",
                      tokens.shape(), " to match tokens, got ", positions.shape());
  } else {
    positions = documents.positions();
  }
  const auto& replay = options.replay_expert_indices;
  const auto mixtures = std::ranges::count_if(layers_, &DecoderLayer::is_moe);
  check<ValueError>(!replay || std::ssize(*replay) == mixtures,
                    "CausalLM: replay_expert_indices must have ", mixtures,
                    " entries, one per mixture layer, got ", replay ? replay->size() : 0);
  check<ValueError>(lm_head_ || !options.targets.defined(),
                    "CausalLM: targets must be given to the part with the head alone");

  std::optional<DropoutIdsGuard> dropout;
  if (options.dropout_ids) dropout.emplace(*options.dropout_ids);
  const nn::SequenceContext context = {
      .documents = documents,
      .rope = ops::rope_table(positions, config_.rotary_dim(), config_.rope_theta, config_.dtype)};
  Output output;
  output.router_scores = config_.router_scores;
  Tensor hidden = embed(tokens, options.hidden);  // [T, H]
  if (options.output_hidden_states) output.hidden_states.push_back(hidden);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    auto& layer = layers_[i];
    const bool replayed = layer.is_moe() && replay.has_value();
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
  if (!lm_head_) {
    output.hidden = hidden;
    return output;
  }
  const Tensor normed = (*norm_)(hidden);
  if (options.output_hidden_states) output.hidden_states.back() = normed;
  const WeightUseGuard use(config_.tie_word_embeddings ? 1 : 0);  // the embedding's is use 0
  if (!options.targets.defined()) {
    const auto project = [](nn::Linear& head, const Tensor& x) {
      return head.product(x, arithmetic_dtype(head.weight().dtype()));
    };
    output.logits = lm_head_->call_method(project, normed);  // [T, V]
    const auto& division = lm_head_->division();
    if (division && !division->whole_features) output.vocabulary = division->group;
    return output;
  }
  const auto cross_entropy = [grad = options.grad_ce_sum](nn::Linear& head, const Tensor& x,
                                                          const Tensor& targets,
                                                          const Tensor& weights) {
    return head.cross_entropy(x, targets,
                              {.denominator = 1.0, .token_weights = weights, .grad_loss = grad});
  };
  output.ce_sum =
      lm_head_->call_method(cross_entropy, normed, options.targets, options.target_weights);
  return output;
}

void CausalLM::balance(const std::vector<std::vector<std::int64_t>>& tokens_per_expert,
                       double rate) {
  const auto mixtures = std::ranges::count_if(layers_, &DecoderLayer::is_moe);
  check<ValueError>(std::ssize(tokens_per_expert) == mixtures, "CausalLM: balance needs counts of ",
                    mixtures, " mixture layers, got ", tokens_per_expert.size());
  check(config_.correction_bias,
        "CausalLM: balance needs routers with a correction bias, got a model without");
  // All is checked before a bias moves.
  for (std::size_t i = 0; i < tokens_per_expert.size(); ++i) {
    const auto& counts = tokens_per_expert[i];
    check<ValueError>(std::ssize(counts) == config_.num_experts && std::ranges::min(counts) >= 0,
                      "CausalLM: balance needs ", config_.num_experts,
                      " counts that are not negative for mixture layer ", i, ", got ",
                      counts.size());
  }
  auto counts = tokens_per_expert.begin();
  for (auto& layer : layers_) {
    if (layer.is_moe()) layer.balance(*counts++, rate);
  }
}

bool CausalLM::is_whole() const {
  return embed_tokens_ && lm_head_ && std::ssize(layers_) == config_.num_hidden_layers;
}

bool CausalLM::is_elsewhere(std::string_view name) const {
  if (name == "model.embed_tokens.weight") return !embed_tokens_;
  if (name == "model.norm.weight" || name == "lm_head.weight") return !lm_head_;
  constexpr std::string_view kLayers = "model.layers.";
  if (!name.starts_with(kLayers)) return false;
  name.remove_prefix(kLayers.size());
  std::int64_t layer = -1;
  const auto read = std::from_chars(name.data(), name.data() + name.size(), layer);
  const bool is_number =
      read.ec == std::errc() && read.ptr != name.data() + name.size() && *read.ptr == '.';
  const bool own = begin_ <= layer && layer < begin_ + std::ssize(layers_);
  const auto layers = config_.num_hidden_layers + config_.num_nextn_predict_layers;
  return is_number && 0 <= layer && layer < layers && !own;
}

Tensor CausalLM::embed(const Tensor& tokens, const Tensor& hidden) {
  if (embed_tokens_) {
    check<ValueError>(!hidden.defined(),
                      "CausalLM: hidden must be given to a part without embedding alone");
    return (*embed_tokens_)(tokens);
  }
  const Shape expected = {tokens.dim(0), config_.hidden_size};
  check<ValueError>(hidden.defined(),
                    "CausalLM: a part without embedding needs options.hidden, got none");
  check<ShapeError>(hidden.shape() == expected, "CausalLM: hidden must be ", expected, ", got ",
                    hidden.shape());
  return hidden;
}

void for_each_tensor(CausalLMForwardOptions& options, const nn::TensorVisitor& visit) {
  // Not the indices of all layers: they have no gradient, and a Function takes few inputs.
  nn::visit_tensors(visit, options.positions, options.hidden, options.targets,
                    options.target_weights);
}

void for_each_tensor(CausalLM::Output& output, const nn::TensorVisitor& visit) {
  nn::visit_tensors(visit, output.logits, output.ce_sum, output.hidden, output.router_logits,
                    output.routing_weights, output.expert_indices, output.hidden_states);
}

}  // namespace moegrad::models
