// SPDX-License-Identifier: Apache-2.0
#pragma once

// A mixture layer whose experts are on several ranks, and what one rank with all experts computes.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "framework/autograd/tree_sum.h"
#include "framework/distributed/device_mesh.h"
#include "framework/distributed/launch.h"
#include "framework/distributed/shard_runs.h"
#include "framework/tensor/fill.h"
#include "nn/init.h"
#include "nn/moe.h"
#include "parallel/expert/expert_parallel.h"
#include "tests/testing.h"

namespace moegrad::test {

inline constexpr std::int64_t kMixtureHidden = 13, kMixtureExperts = 8, kMixtureTopK = 2;

inline std::unique_ptr<nn::MoE> make_mixture(
    Dtype dtype, nn::ExpertWeights weights = nn::ExpertWeights::kPretransposed) {
  auto mixture = std::make_unique<nn::MoE>(nn::MoE::Config{.hidden_size = kMixtureHidden,
                                                           .intermediate_size = 6,
                                                           .num_experts = kMixtureExperts,
                                                           .top_k = kMixtureTopK,
                                                           .expert_weights = weights,
                                                           .dtype = dtype});
  nn::init_weights(*mixture, 3, 0.5);
  return mixture;
}

/// The mesh of an expert group of all ranks.
inline DeviceMesh expert_mesh(RankContext& rank) {
  return DeviceMesh(rank.group(), {{"ep", rank.world_size()}});
}

/// Where the tokens of each rank go: experts [T, K] of each.
using Routing = std::vector<std::vector<std::vector<std::int64_t>>>;

inline Tensor indices_of(const Routing& routing, int rank) {
  std::vector<std::int64_t> flat;
  const auto& own = routing[static_cast<std::size_t>(rank)];
  for (const auto& token : own) flat.insert(flat.end(), token.begin(), token.end());
  return Tensor::from(flat, {std::ssize(own), kMixtureTopK});
}

/// This rank's tokens; each rank has others.
inline Tensor tokens_of(const Routing& routing, int rank, Dtype dtype) {
  const auto own = std::ssize(routing[static_cast<std::size_t>(rank)]);
  return randn({own, kMixtureHidden}, 100 + static_cast<std::uint64_t>(rank), dtype, true);
}

/// What a rank's micro-batch gives a layer that has all experts.
struct Results {
  Tensor y, grad_x;
  NamedTensors gradients;  // of the layer's parameters
};

inline Results run_mixture(nn::MoE& mixture, const Routing& routing, int rank, Dtype dtype) {
  const Tensor x = tokens_of(routing, rank, dtype);
  const auto output = mixture(x, indices_of(routing, rank));
  output.hidden.backward(
      randn(output.hidden.shape(), 500 + static_cast<std::uint64_t>(rank), dtype));
  Results results{.y = output.hidden.detach(), .grad_x = x.grad(), .gradients = {}};
  for (const auto& [name, parameter] : mixture.named_parameters()) {
    results.gradients.push_back({name, parameter.grad()});
  }
  return results;
}

/// The gradients of the experts over all ranks' micro-batches, along the tree over the ranks.
inline NamedTensors sum_over_ranks(const Routing& routing, Dtype dtype, nn::ExpertWeights weights) {
  std::vector<TreeSum> sums;
  NamedTensors gradients;
  for (int rank = 0; rank < static_cast<int>(routing.size()); ++rank) {
    const auto mixture = make_mixture(dtype, weights);
    gradients = run_mixture(*mixture, routing, rank, dtype).gradients;
    sums.resize(gradients.size());
    for (std::size_t i = 0; i < gradients.size(); ++i) sums[i].push(clone(gradients[i].tensor));
  }
  for (std::size_t i = 0; i < gradients.size(); ++i) gradients[i].tensor = sums[i].take();
  return gradients;
}

}  // namespace moegrad::test
