// SPDX-License-Identifier: Apache-2.0
#pragma once

// Small models that the fsdp tests shard.

#include <bit>
#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>
#include <vector>

#include "framework/distributed/launch.h"
#include "framework/distributed/parallel_dims.h"
#include "framework/distributed/shard_spec.h"
#include "fsdp/state_dict.h"
#include "optim/adamw.h"
#include "tests/models/causal_lm/toy_models.h"
#include "tests/testing.h"
#include "train/train_step.h"

namespace moegrad::test {

/// Four experts, fewer than eight ranks, in float32.
inline models::CausalLMConfig sharded_toy_config() {
  auto config = toy_config();
  config.num_experts = 4;
  config.initializer_range = 0.1;
  config.dtype = Dtype::kFloat32;
  return config;
}

/// What layers of `config` are given besides hidden states.
inline nn::SequenceContext context_of(const models::CausalLMConfig& config,
                                      const std::vector<std::int64_t>& lengths) {
  const auto documents = Documents::of_lengths(lengths);
  return {.documents = documents,
          .rope = ops::rope_table(documents.positions(), config.head_dim, config.rope_theta,
                                  config.dtype)};
}

/// M micro-batches of random tokens in documents of 7 and 9 tokens; the target of a token is a
/// function of it, which can be learned.
inline std::vector<training::MicroBatch> toy_batches(std::int64_t step, std::int64_t micro_batches,
                                                     std::int64_t vocabulary) {
  const Random random(7, "toy batches");
  std::vector<training::MicroBatch> batches;
  for (std::int64_t m = 0; m < micro_batches; ++m) {
    std::vector<std::int64_t> tokens, targets;
    for (std::int64_t i = 0; i < 16; ++i) {
      const auto index = static_cast<std::uint64_t>((step * micro_batches + m) * 16 + i);
      tokens.push_back(random.integer(index, vocabulary));
      targets.push_back((tokens.back() * 5 + 3) % vocabulary);
    }
    batches.push_back({.tokens = Tensor::from(tokens, {16}),
                       .targets = Tensor::from(targets, {16}),
                       .documents = Documents::of_lengths({7, 9})});
  }
  return batches;
}

/// What a training run computed, in full precision.
struct History {
  std::vector<double> loss;
  std::vector<double> grad_norm;
  std::vector<std::vector<double>> parameters;

  friend bool operator==(const History&, const History&) = default;
  friend std::ostream& operator<<(std::ostream& out, const History& history) {
    out << std::hexfloat;
    for (std::size_t step = 0; step < history.loss.size(); ++step) {
      out << "\nstep " << step << ": loss " << history.loss[step] << ", grad norm "
          << history.grad_norm[step];
    }
    std::uint64_t bits = 0;  // a checksum, for runs that differ in nothing else
    for (const auto& parameter : history.parameters) {
      for (const auto value : parameter) bits = bits * 31 + std::bit_cast<std::uint64_t>(value);
    }
    return out << "\nparameters of checksum " << std::hex << bits << std::dec << std::defaultfloat;
  }
};

inline DeviceMesh fsdp_mesh(const std::shared_ptr<ProcessGroup>& world, const ParallelDims& dims) {
  return make_meshes(world, dims).fsdp();
}

/// A training run of a sharded model, and how it is spread over ranks.
struct ToyTraining {
  ParallelDims ranks = {};
  std::optional<ParallelDims> experts = {};
  std::int64_t steps = 5;
  std::int64_t micro_batches = 4;
  fsdp::Policy policy = {};
  training::StepOptions step = {};
  std::int64_t recompute_layers = 0;
  fsdp::Accumulation accumulation = fsdp::Accumulation::kKeepUntilLast;
  LaunchOptions launch = {};
  std::function<void(RankContext&, models::CausalLM&)> prepare = {};  // the sharded model
  std::function<void(RankContext&)> inspect = {};                     // rank 0, at the end
};

inline History train_sharded(const models::CausalLMConfig& config, const ToyTraining& training) {
  History history;
  const auto train = [&](RankContext& context) {
    models::CausalLM model(config, 3);
    training::recompute_layers(model, training.recompute_layers);
    auto policy = training.policy;
    if (training.experts) policy.expert_mesh = fsdp_mesh(context.group(), *training.experts);
    auto& state =
        training::shard_model(model, make_meshes(context.group(), training.ranks), policy);
    if (training.prepare) training.prepare(context, model);
    optim::AdamW optimizer(training::decay_matrices(model.named_parameters(), 1e-2, 0.1), {});
    fsdp::StepPlan plan(state, training.micro_batches, training.accumulation);
    for (std::int64_t step = 0; step < training.steps; ++step) {
      const auto batches = toy_batches(step, training.micro_batches, config.vocab_size);
      const auto result =
          training::train_step(model, plan, plan.own(batches), training.step, optimizer);
      if (context.rank() != 0) continue;
      history.loss.push_back(result.loss);
      history.grad_norm.push_back(result.grad_norm);
    }
    for (const auto& [name, whole] : fsdp::full_state_dict(model)) {  // on rank 0
      const Tensor values = to_dtype(whole, Dtype::kFloat64);
      const auto all = values.data<double>();
      history.parameters.emplace_back(all.begin(), all.end());
    }
    if (training.inspect && context.rank() == 0) training.inspect(context);
  };
  launch(training.ranks.ranks(), train, training.launch);
  return history;
}

}  // namespace moegrad::test
