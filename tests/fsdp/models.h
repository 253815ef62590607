// SPDX-License-Identifier: Apache-2.0
#pragma once

// Small models that the fsdp tests shard.

#include <cstdint>
#include <functional>
#include <vector>

#include "examples/trainer.h"
#include "framework/distributed/launch.h"
#include "framework/distributed/shard_spec.h"
#include "fsdp/state_dict.h"
#include "tests/models/toy_models.h"
#include "tests/testing.h"

namespace moegrad::testing {

/// Four experts, fewer than eight ranks, in float32.
inline models::Qwen3MoeConfig sharded_toy_config() {
  auto config = toy_config();
  config.num_experts = 4;
  config.initializer_range = 0.1;
  config.dtype = Dtype::kFloat32;
  return config;
}

/// M micro-batches of random tokens in documents of 7 and 9 tokens; the target of a token is a
/// function of it, which can be learned.
inline std::vector<examples::MicroBatch> toy_batches(std::int64_t step, std::int64_t micro_batches,
                                                     std::int64_t vocabulary) {
  const Random random(7, "toy batches");
  std::vector<examples::MicroBatch> batches;
  for (std::int64_t m = 0; m < micro_batches; ++m) {
    std::vector<std::int64_t> tokens, targets;
    for (std::int64_t i = 0; i < 16; ++i) {
      const auto index = static_cast<std::uint64_t>((step * micro_batches + m) * 16 + i);
      tokens.push_back(random.integer(index, vocabulary));
      targets.push_back((tokens.back() * 5 + 3) % vocabulary);
    }
    batches.push_back({.tokens = Tensor::from(tokens, {16}),
                       .targets = Tensor::from(targets, {16}),
                       .cu_seqlens = {0, 7, 16}});
  }
  return batches;
}

/// What a training run computed, in full precision.
struct History {
  std::vector<double> loss;
  std::vector<double> grad_norm;
  std::vector<std::vector<double>> parameters;

  friend bool operator==(const History&, const History&) = default;
};

/// Trains `config` for `steps` steps on `world_size` ranks under fully_shard.
inline History train_sharded(const models::Qwen3MoeConfig& config, int world_size,
                             std::int64_t steps, std::int64_t micro_batches,
                             const fsdp::Policy& policy = {},
                             const examples::StepOptions& step_options = {},
                             const std::function<void(RankContext&)>& inspect = {}) {
  History history;
  launch(world_size, [&](RankContext& context) {
    models::Qwen3Moe model(config, 3);
    auto& state = examples::shard_model(model, DeviceMesh::flat(context.group()), policy);
    optim::AdamW optimizer(examples::decay_matrices(model.named_parameters(), 1e-2, 0.1), {});
    for (std::int64_t step = 0; step < steps; ++step) {
      const auto result =
          examples::train_step(model, state, toy_batches(step, micro_batches, config.vocab_size),
                               step_options, optimizer);
      if (context.rank() != 0) continue;
      history.loss.push_back(result.loss);
      history.grad_norm.push_back(result.grad_norm);
    }
    for (const auto& [name, whole] : fsdp::full_state_dict(model)) {  // on rank 0
      const Tensor values = to_dtype(whole, Dtype::kFloat64);
      const auto all = values.data<double>();
      history.parameters.emplace_back(all.begin(), all.end());
    }
    if (inspect && context.rank() == 0) inspect(context);
  });
  return history;
}

}  // namespace moegrad::testing
