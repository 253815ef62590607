// SPDX-License-Identifier: Apache-2.0
#pragma once

// Two mixture layers, and how they are divided and sharded.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "framework/distributed/gather_shards.h"
#include "framework/distributed/parallel_dims.h"
#include "framework/runtime/rank_context.h"
#include "fsdp/fully_shard.h"
#include "nn/init.h"
#include "nn/linear.h"
#include "nn/module.h"
#include "nn/moe.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "optim/adamw.h"
#include "optim/clip_grad_norm.h"
#include "optim/optimizer.h"
#include "parallel/expert/expert_parallel.h"
#include "tests/fsdp/draining_hooks.h"
#include "tests/testing.h"

namespace moegrad::parallel::two_mixtures {

inline constexpr std::int64_t kHidden = 12, kInner = 10, kExperts = 8, kTokens = 6;

/// Two mixture layers with a linear one before each.
class Net final : public nn::Callable<Net> {
 public:
  explicit Net(nn::ExpertWeights weights = nn::ExpertWeights::kPretransposed,
               Dtype dtype = Dtype::kFloat32) {
    for (int i = 0; i < 2; ++i) {
      blocks_.push_back(std::make_unique<Block>(weights, dtype));
      register_module("blocks." + std::to_string(i), *blocks_.back());
    }
  }

  Tensor forward(const Tensor& x) {
    Tensor hidden = x;
    for (const auto& block : blocks_) hidden = (*block)(hidden);
    return hidden;
  }

  class Block final : public nn::Callable<Block> {
   public:
    Block(nn::ExpertWeights weights, Dtype dtype)
        : linear_({.in_features = kHidden, .out_features = kHidden, .dtype = dtype}),
          mlp_({.hidden_size = kHidden,
                .intermediate_size = kInner,
                .num_experts = kExperts,
                .top_k = 2,
                .expert_weights = weights,
                .dtype = dtype}) {
      register_module("linear", linear_);
      register_module("mlp", mlp_);
    }
    Tensor forward(const Tensor& x) { return x + mlp_(linear_(x)).hidden; }

   private:
    nn::Linear linear_;
    nn::MoE mlp_;
  };
  std::vector<std::unique_ptr<Block>>& blocks() { return blocks_; }

 private:
  std::vector<std::unique_ptr<Block>> blocks_;
};

inline fsdp::State& shard(Net& net, const ParallelMeshes& meshes, fsdp::Policy policy = {}) {
  policy.expert_mesh = meshes.expert_fsdp();
  for (auto& block : net.blocks()) fsdp::fully_shard(*block, meshes.fsdp(), policy);
  return fsdp::fully_shard(net, meshes.fsdp(), policy);
}

/// The micro-batches of all ranks; M of them per step.
inline constexpr int kMicroBatches = 8;

inline Tensor micro_batch(int step, int number, Dtype dtype) {
  return test::randn({kTokens, kHidden}, static_cast<std::uint64_t>(1000 + step * 100 + number),
                     dtype);
}

/// Norms, and the whole parameters at the end.
struct Trained {
  std::vector<double> norms;
  NamedTensors parameters;
};

using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(NamedTensors)>;

inline std::unique_ptr<optim::Optimizer> make_adamw(NamedTensors parameters) {
  return std::make_unique<optim::AdamW>(std::move(parameters),
                                        optim::AdamW::Config{.lr = 0.05, .weight_decay = 0.1});
}

/// A few steps, each micro-batch reduced. Micro-batch i of rank r of R is number i R + r.
inline Trained train(Net& net, RankContext& rank, Dtype dtype,
                     const MakeOptimizer& make_optimizer = make_adamw,
                     test::Drained drained = test::Drained::kNoQueue) {
  const auto optimizer = make_optimizer(net.named_parameters());
  Trained trained;
  const int ranks = rank.world_size();
  for (int step = 0; step < 3; ++step) {
    optimizer->zero_grad();
    for (int i = 0; i < kMicroBatches / ranks; ++i) {
      const Tensor x = micro_batch(step, i * ranks + rank.rank(), dtype);
      const Tensor loss = ops::sum(ops::square(net(x)));
      const test::DrainedQueue draining(net, drained, static_cast<std::uint64_t>(10 * step + i));
      loss.backward();
    }
    trained.norms.push_back(optim::clip_grad_norm(net.named_parameters(), 10.0));
    optimizer->step();
  }
  for (const auto& [name, parameter] : net.named_parameters()) {
    trained.parameters.push_back(
        {name, all_gather_shards(parameter.detach(), *parameter.shard_spec())});
  }
  return trained;
}

inline void expect_the_bits_of(const Trained& expected, const Trained& trained) {
  EXPECT_EQ(trained.norms, expected.norms);
  ASSERT_EQ(trained.parameters.size(), expected.parameters.size());
  for (std::size_t i = 0; i < expected.parameters.size(); ++i) {
    const auto& [name, tensor] = expected.parameters[i];
    EXPECT_EQ(trained.parameters[i].name, name);
    EXPECT_TRUE(test::bitwise_equal(trained.parameters[i].tensor, tensor)) << name;
  }
}

/// A Net of two ranks that have its experts between them, sharded.
struct DividedNet {
  explicit DividedNet(RankContext& rank, const fsdp::Policy& policy = {})
      : meshes(make_meshes(rank.group(), {.dp_shard = 2, .ep = 2})), state([&]() -> fsdp::State& {
          nn::init_weights(net, 5, 0.3);
          expert_parallel(net, meshes.expert);
          return shard(net, meshes, policy);
        }()) {}

  Net net;
  ParallelMeshes meshes;
  fsdp::State& state;
};

}  // namespace moegrad::parallel::two_mixtures
