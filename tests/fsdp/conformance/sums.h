// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reference gradients: what each rank and micro-batch contributes, summed along Note [Where a
// gradient is summed].

#include <functional>
#include <vector>

#include "framework/autograd/tree_sum.h"
#include "framework/tensor/fill.h"
#include "framework/tensor/tensor.h"
#include "nn/module.h"

namespace moegrad::test {

/// term(0), ..., term(n - 1), summed along Note [Tree of successive terms].
inline Tensor tree_sum(int n, const std::function<Tensor(int)>& term) {
  TreeSum sum;
  for (int i = 0; i < n; ++i) sum.push(clone(term(i)));
  return sum.take();
}

/// How many leaves of a sum there are at each level.
struct Leaves {
  int replicas = 1;
  int shards = 1;
  int micro_batches = 1;

  int ranks() const { return replicas * shards; }
};

/// At which level micro-batches are summed: on the unsharded parameters (no gradient sync until the
/// last), on what the reduce-scatter leaves (no all-reduce until the last), or in grad().
enum class Accumulation { kKept, kScattered, kReduced };

/// The sum for one parameter: leaf(rank, micro_batch), rank = replica * shards + shard.
inline Tensor sum_of(const Leaves& leaves, Accumulation accumulation,
                     const std::function<Tensor(int, int)>& leaf) {
  const auto over_replicas = [&](const auto& term) { return tree_sum(leaves.replicas, term); };
  const auto over_shards = [&](const auto& term) { return tree_sum(leaves.shards, term); };
  const auto over_batches = [&](const auto& term) { return tree_sum(leaves.micro_batches, term); };
  const auto at = [&](int replica, int part) { return replica * leaves.shards + part; };
  switch (accumulation) {
    case Accumulation::kKept:
      return over_replicas([&](int r) {
        return over_shards(
            [&](int s) { return over_batches([&](int m) { return leaf(at(r, s), m); }); });
      });
    case Accumulation::kScattered:
      return over_replicas([&](int r) {
        return over_batches(
            [&](int m) { return over_shards([&](int s) { return leaf(at(r, s), m); }); });
      });
    case Accumulation::kReduced:
      return over_batches([&](int m) {
        return over_replicas(
            [&](int r) { return over_shards([&](int s) { return leaf(at(r, s), m); }); });
      });
  }
  return {};
}

/// Gradients of an unsharded module, [rank][micro-batch][parameter].
using LeafGradients = std::vector<std::vector<TensorList>>;

/// Runs loss(rank, micro_batch).backward() for all leaves in turn.
inline LeafGradients gradients_of_leaves(nn::Module& module, const Leaves& leaves,
                                         const std::function<Tensor(int, int)>& loss) {
  LeafGradients gradients(static_cast<std::size_t>(leaves.ranks()));
  for (int rank = 0; rank < leaves.ranks(); ++rank) {
    for (int m = 0; m < leaves.micro_batches; ++m) {
      loss(rank, m).backward();
      auto& own = gradients[static_cast<std::size_t>(rank)].emplace_back();
      for (const auto& parameter : module.named_parameters()) {
        own.push_back(parameter.tensor.grad());
      }
      module.zero_grad();
    }
  }
  return gradients;
}

/// The sum over all leaves, of parameter i.
inline Tensor sum_of(const LeafGradients& gradients, std::size_t i, const Leaves& leaves,
                     Accumulation accumulation) {
  return sum_of(leaves, accumulation, [&](int rank, int m) {
    return gradients[static_cast<std::size_t>(rank)][static_cast<std::size_t>(m)][i];
  });
}

}  // namespace moegrad::test
