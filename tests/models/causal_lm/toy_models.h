// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "framework/runtime/random.h"
#include "framework/tensor/documents.h"
#include "framework/tensor/fill.h"
#include "models/causal_lm/loss.h"
#include "models/causal_lm/model.h"

namespace moegrad::test {

/// Sizes that are multiples of nothing, heads * head_dim != hidden_size, weights large enough that
/// every part of the model shows in the logits.
inline models::CausalLMConfig toy_config() {
  models::CausalLMConfig config;
  config.vocab_size = 37;
  config.hidden_size = 20;
  config.intermediate_size = 27;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 6;
  config.initializer_range = 0.3;
  config.moe_intermediate_size = 11;
  config.num_experts = 5;
  config.num_experts_per_tok = 2;
  config.norm_topk_prob = true;
  config.router_aux_loss_coef = 0.05;
  config.dtype = Dtype::kFloat64;
  return config;
}

/// The same with everything that models of that type have besides.
inline models::CausalLMConfig toy_config_of(models::ModelType type) {
  auto config = toy_config();
  config.model_type = type;
  config.use_qk_norm = type == models::ModelType::kQwen3Moe;
  if (type == models::ModelType::kMixtral) {  // it has no dense layers, and no key for their size
    config.intermediate_size = models::CausalLMConfig::of(type).intermediate_size;
  }
  if (type == models::ModelType::kQwen2Moe) {
    config.qkv_bias = true;
    config.shared_expert_intermediate_size = 9;
  }
  if (type == models::ModelType::kGlm4Moe) {
    config.use_qk_norm = true;
    config.qkv_bias = true;
    config.num_hidden_layers = 3;
    config.head_dim = 8;
    config.partial_rotary_factor = 0.5;
    config.first_k_dense_replace = 1;
    config.router_scores = nn::RouterScores::kSigmoid;
    config.num_experts = 6;
    config.n_group = 3;
    config.topk_group = 2;
    config.routed_scaling_factor = 1.5;
    config.correction_bias = true;
    config.n_shared_experts = 2;
    config.router_aux_loss_coef = 0;
  }
  return config;
}

inline constexpr models::ModelType kModelTypes[] = {
    models::ModelType::kQwen3Moe, models::ModelType::kQwen2Moe, models::ModelType::kMixtral,
    models::ModelType::kGlm4Moe};

/// Biases and correction biases that are not zero, as after some training.
inline void draw_biases(const models::CausalLM& model) {
  for (const auto& item : model.state_dict()) {
    if (!item.name.ends_with("bias")) continue;
    Tensor bias = item.tensor;
    const Random random(11, item.name);
    dispatch_floating(bias.dtype(), [&]<class T>() {
      std::uint64_t i = 0;
      for (auto& value : bias.mutable_data<T>()) value = static_cast<T>(0.2 * random.normal(i++));
    });
  }
}

inline models::CausalLMConfig hugging_face_oriented(models::CausalLMConfig config) {
  config.expert_weights = nn::ExpertWeights::kHuggingFace;
  return config;
}

/// Norm weights away from one, so that a norm left out shows.
inline void jitter_norms(const models::CausalLM& model) {
  for (const auto& item : model.state_dict()) {
    Tensor parameter = item.tensor;
    if (parameter.ndim() != 1) continue;
    const Random random(9, item.name);
    dispatch_floating(parameter.dtype(), [&]<class T>() {
      std::uint64_t i = 0;
      for (auto& value : parameter.mutable_data<T>()) {
        value = static_cast<T>(1.0 + 0.25 * random.normal(i++));
      }
    });
  }
}

struct Batch {
  Tensor tokens;
  Tensor targets;
  Documents documents;
};

/// Random tokens of documents packed one after the other; some targets are ignored.
inline Batch toy_batch(std::int64_t vocabulary, const std::vector<std::int64_t>& lengths = {5, 8}) {
  const auto documents = Documents::of_lengths(lengths);
  const Random random(4, "toy batch");
  std::vector<std::int64_t> tokens, targets;
  for (std::int64_t t = 0; t < documents.tokens(); ++t) {
    const auto index = static_cast<std::uint64_t>(t);
    tokens.push_back(random.integer(index, vocabulary));
    targets.push_back(t % 5 == 2 ? -100 : random.integer(index + 1000, vocabulary));
  }
  const Shape shape{documents.tokens()};
  return {Tensor::from(tokens, shape), Tensor::from(targets, shape), documents};
}

struct Gradients {
  models::CausalLM::Output output;
  models::CausalLMLoss loss;
  NamedTensors parameters;  // gradients, by parameter
};

/// Forward and backward of one batch, which is the whole step.
inline Gradients gradients_of(models::CausalLM& model, const Batch& batch,
                              const models::CausalLM::ForwardOptions& options = {}) {
  model.zero_grad();
  Gradients result;
  result.output = model(batch.tokens, batch.documents, options);
  result.loss =
      models::causal_lm_loss(result.output, batch.targets, 12, model.config().router_aux_loss_coef);
  result.loss.objective.backward();
  for (const auto& [name, parameter] : model.named_parameters()) {
    result.parameters.push_back({name, parameter.grad()});
  }
  return result;
}

}  // namespace moegrad::test
