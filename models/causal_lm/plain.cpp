// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens, L of them in one document, H hidden size, Nq and Nkv heads of D, I intermediate
//         size, E experts, K experts per token, V vocabulary.
#include "models/causal_lm/plain.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "framework/autograd/weight_use.h"
#include "framework/runtime/error.h"
#include "models/plain_moe.h"
#include "ops/copies.h"
#include "ops/elementwise.h"
#include "ops/indexing.h"
#include "ops/matmul_reference.h"
#include "ops/reduce.h"
#include "ops/softmax.h"
#include "ops/split_cat.h"
#include "ops/views.h"

namespace moegrad::models {
namespace {

Tensor index_tensor(const std::vector<std::int64_t>& values) {
  return Tensor::from(values, {std::ssize(values)});
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  return x * ops::rsqrt(ops::mean(ops::square(x), -1, /*keepdim=*/true) + eps) * weight;
}

struct Angles {
  Tensor cos, sin;  // [T, 1, R], both halves alike, for the R channels that are turned
};

Angles angles_of(const Tensor& positions, const CausalLMConfig& config) {
  const auto d = config.rotary_dim(), half = d / 2;
  std::vector<double> cos, sin;
  for (const auto position : positions.data<std::int64_t>()) {
    for (std::int64_t i = 0; i < d; ++i) {
      const double exponent = -2.0 * static_cast<double>(i % half) / static_cast<double>(d);
      const double angle = static_cast<double>(position) * std::pow(config.rope_theta, exponent);
      cos.push_back(std::cos(angle));
      sin.push_back(std::sin(angle));
    }
  }
  const Shape shape{positions.dim(0), 1, d};
  return {.cos = ops::cast(Tensor::from(cos, shape), config.dtype),
          .sin = ops::cast(Tensor::from(sin, shape), config.dtype)};
}

/// x cos + rotate_half(x) sin with rotate_half(x) = (-second half, first half) of the first R
/// channels; the others stay.      x: [T, N, D]
Tensor rope(const Tensor& x, const Angles& angles) {
  const auto turned = angles.cos.dim(2), stays = x.dim(2) - turned;
  const Tensor part = ops::narrow(x, 2, 0, turned);
  const auto halves = ops::chunk(part, 2, -1);
  const Tensor y = part * angles.cos + ops::cat({-halves[1], halves[0]}, -1) * angles.sin;
  return stays == 0 ? y : ops::cat({y, ops::narrow(x, 2, turned, stays)}, -1);
}

/// 0 where query i may see key j <= i, else minus infinity: [L, L]
Tensor causal_mask(std::int64_t length, Dtype dtype) {
  std::vector<double> mask;
  for (std::int64_t i = 0; i < length; ++i) {
    for (std::int64_t j = 0; j < length; ++j) {
      mask.push_back(j <= i ? 0.0 : -std::numeric_limits<double>::infinity());
    }
  }
  return ops::cast(Tensor::from(mask, {length, length}), dtype);
}

/// The model's weights by name, and the values that all layers share.
class PlainModel {
 public:
  PlainModel(const CausalLMConfig& config, const NamedTensors& parameters, const Tensor& positions,
             const Documents& documents)
      : config_(config),
        parameters_(parameters),
        offsets_(documents.offsets()),
        angles_(angles_of(positions, config)) {}

  CausalLM::Output run(const Tensor& tokens, const CausalLM::ForwardOptions& options) const {
    const auto& replay = options.replay_expert_indices;
    CausalLM::Output output;
    output.router_scores = config_.router_scores;
    Tensor hidden = ops::index_select(weight("model.embed_tokens"), 0, tokens);  // [T, H]
    if (options.output_hidden_states) output.hidden_states.push_back(hidden);
    for (std::int64_t i = 0; i < config_.num_hidden_layers; ++i) {
      const std::string layer = "model.layers." + std::to_string(i);
      hidden = hidden + attention(norm(hidden, layer + ".input_layernorm"), layer + ".self_attn");
      const Tensor normed = norm(hidden, layer + ".post_attention_layernorm");
      const std::string mlp = layer + ".mlp";
      if (config_.is_moe_layer(i)) {
        const auto chosen = replay ? (*replay)[output.expert_indices.size()] : Tensor();
        hidden = hidden + moe(normed, mlp, chosen, output);
      } else {
        hidden = hidden + plain_swiglu(normed, weight(mlp + ".gate_proj"), weight(mlp + ".up_proj"),
                                       weight(mlp + ".down_proj"));
      }
      if (options.output_hidden_states) output.hidden_states.push_back(hidden);
    }
    const Tensor normed = norm(hidden, "model.norm");
    if (options.output_hidden_states) output.hidden_states.back() = normed;
    const auto* const head = config_.tie_word_embeddings ? "model.embed_tokens" : "lm_head";
    const WeightUseGuard use(config_.tie_word_embeddings ? 1 : 0);
    output.logits = plain_linear(normed, weight(head));  // [T, V]
    return output;
  }

 private:
  const Tensor& parameter(const std::string& name) const {
    const auto found = std::ranges::find(parameters_, name, &NamedTensor::name);
    check<ValueError>(found != parameters_.end(), "plain_causal_lm: parameter '", name,
                      "' must be given, got ", parameters_.size(), " others");
    return found->tensor;
  }
  const Tensor& weight(const std::string& module) const { return parameter(module + ".weight"); }

  Tensor norm(const Tensor& x, const std::string& module) const {
    return rms_norm(x, weight(module), config_.rms_norm_eps);
  }

  Tensor attention(const Tensor& x, const std::string& module) const {  // [T, H]
    const auto tokens = x.dim(0), d = config_.head_dim;
    const auto nq = config_.num_attention_heads, nkv = config_.num_key_value_heads;
    const auto project = [&](const std::string& name, std::int64_t heads) {  // [T, N, D]
      Tensor y = plain_linear(x, weight(module + name));
      if (config_.qkv_bias) y = y + parameter(module + name + ".bias");
      return ops::reshape(y, {tokens, heads, d});
    };
    const auto normed = [&](const Tensor& y, const std::string& name) {
      return config_.use_qk_norm ? norm(y, module + name) : y;
    };
    const Tensor q = rope(normed(project(".q_proj", nq), ".q_norm"), angles_);
    const Tensor k = rope(normed(project(".k_proj", nkv), ".k_norm"), angles_);
    const Tensor v = project(".v_proj", nkv);
    TensorList documents;
    for (std::size_t i = 0; i + 1 < offsets_.size(); ++i) {
      const auto start = offsets_[i], length = offsets_[i + 1] - start;
      if (length == 0) continue;
      const auto heads_first = [&](const Tensor& all) {  // [T, N, D] -> [N, L, D]
        return ops::contiguous(ops::transpose(ops::narrow(all, 0, start, length), 0, 1));
      };
      const auto repeated = [&](const Tensor& all) {  // [Nkv, L, D] -> [Nq, L, D]
        const Tensor one = ops::unsqueeze(heads_first(all), 1);
        return ops::reshape(ops::expand(one, {nkv, nq / nkv, length, d}), {nq, length, d});
      };
      const Tensor keys = ops::contiguous(ops::transpose(repeated(k), 1, 2));  // [Nq, D, L]
      const Tensor scores = ops::matmul_reference(heads_first(q), keys) *
                            (1.0 / std::sqrt(static_cast<double>(d)));  // [Nq, L, L]
      const Tensor p = ops::softmax(scores + causal_mask(length, config_.dtype));
      const Tensor mixed = ops::matmul_reference(p, repeated(v));  // [Nq, L, D]
      documents.push_back(
          ops::reshape(ops::contiguous(ops::transpose(mixed, 0, 1)), {length, nq * d}));
    }
    return plain_linear(ops::cat(documents, 0), weight(module + ".o_proj"));  // [T, H]
  }

  /// Appends logits and choices to `output`; returns the layer's own result.
  Tensor moe(const Tensor& x, const std::string& module, const Tensor& replay,  // [T, H]
             CausalLM::Output& output) const {
    const auto result = plain_moe(
        config_.mixture(), [&](const std::string& name) { return parameter(module + "." + name); },
        x, replay);
    output.router_logits.push_back(result.router_logits);
    output.routing_weights.push_back(result.routing_weights);
    output.expert_indices.push_back(result.expert_indices);
    output.tokens_per_expert.push_back(result.tokens_per_expert);
    return result.hidden;
  }

  const CausalLMConfig& config_;
  const NamedTensors& parameters_;
  const std::vector<std::int64_t>& offsets_;
  Angles angles_;
};

/// E sum_j sum_e f_je mean_t p_te, p the probabilities or scores that sum to one, over the rows of
/// all layers, f_je the share of rows whose j-th choice is e.
Tensor plain_load_balancing_loss(const CausalLM::Output& output) {
  const auto& indices = output.expert_indices;
  const Tensor logits = ops::cat(output.router_logits, 0);  // [layers * T, E]
  Tensor p = ops::softmax(logits);
  if (output.router_scores == nn::RouterScores::kSigmoid) {
    const Tensor scores = ops::sigmoid(logits);
    p = scores / ops::sum(scores, -1, /*keepdim=*/true);
  }
  const auto experts = p.dim(1);
  std::vector<double> share(static_cast<std::size_t>(experts));  // f, summed over j
  for (const auto& layer : indices) {
    for (const auto expert : layer.data<std::int64_t>()) {
      share[static_cast<std::size_t>(expert)] += 1.0 / static_cast<double>(p.dim(0));
    }
  }
  const Tensor f = ops::cast(Tensor::from(share, {experts}), p.dtype());
  return ops::sum(f * ops::mean(p, 0)) * static_cast<double>(experts);
}

}  // namespace

CausalLM::Output plain_causal_lm(const CausalLMConfig& config, const NamedTensors& parameters,
                                 const Tensor& tokens, const Documents& documents,
                                 const CausalLM::ForwardOptions& options) {
  check<ValueError>(documents.tokens() == tokens.dim(0),
                    "plain_causal_lm: documents must have the ", tokens.dim(0), " tokens, got ",
                    documents.tokens());
  const Tensor positions = options.positions.defined() ? options.positions : documents.positions();
  const PlainModel model(config, parameters, positions, documents);
  return model.run(tokens, options);
}

CausalLMLoss plain_causal_lm_loss(const CausalLM::Output& output, const Tensor& targets,
                                  std::int64_t global_targets, double router_aux_loss_coef) {
  constexpr std::int64_t kIgnored = -100;
  const auto vocabulary = output.logits.dim(1);
  std::vector<std::int64_t> elements;  // of the flattened [T, V]
  std::int64_t t = 0;
  for (const auto target : targets.data<std::int64_t>()) {
    if (target != kIgnored) elements.push_back(t * vocabulary + target);
    ++t;
  }
  const Tensor log_p = ops::reshape(ops::log_softmax(output.logits), {targets.dim(0) * vocabulary});
  const Tensor ce_sum = -ops::sum(ops::index_select(log_p, 0, index_tensor(elements)));
  const auto total = static_cast<double>(global_targets);
  Tensor objective = ce_sum * (1.0 / total);
  if (output.router_logits.empty()) {
    return {
        .objective = objective, .ce_sum = ce_sum, .aux = Tensor::zeros({}, output.logits.dtype())};
  }
  const Tensor aux = plain_load_balancing_loss(output);
  const double share = static_cast<double>(elements.size()) / total;
  objective = objective + aux * (router_aux_loss_coef * share);
  return {.objective = objective, .ce_sum = ce_sum, .aux = aux};
}

}  // namespace moegrad::models
