// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>

#include "framework/distributed/device_mesh.h"

namespace moegrad {

/// By how many ranks a model and its data are divided in each way. The names and rules are those of
/// torchtitan's ParallelDims.
///
/// Note [Which rank is where]
/// The ranks of the world are numbered along the axes pp, dp_replicate, dp_shard, cp, tp; the last
/// runs fastest. So the ranks of one tp group are neighbours, and a pipeline stage is one run of
/// ranks. Dense parameters are sharded over dp_shard and cp together: all these ranks have
/// gradients from different tokens.
///
/// Expert parallelism takes no ranks of its own. It is the innermost part of dp_shard x cp: of
/// those ranks, ep neighbours have the experts of a layer between them, and the ranks that have the
/// same experts shard these. A stage of 8 ranks, {.dp_shard = 4, .cp = 2, .ep = 4}:
///
///     rank            0   1   2   3   4   5   6   7
///     dp_shard, cp   0 0 0 1 1 0 1 1 2 0 2 1 3 0 3 1
///     dense   shard   0   1   2   3   4   5   6   7
///     expert  shard   0   0   0   0   1   1   1   1
///             ep      0   1   2   3   0   1   2   3
///
/// With tensor parallelism the ranks of a tp group divide the tokens of a micro-batch for its
/// mixtures, and ep is 1 or tp: these ranks have the experts between them.
///
/// Neighbours run neighbouring micro-batches (Note [Who runs which micro-batch]), so what an expert
/// group sums is one subtree of the canonical tree.
///
/// This is the one place that knows which rank is where; whatever needs a group takes it from the
/// meshes below.
struct ParallelDims {
  int dp_replicate = 1;  ///< copies of the sharded model (HSDP)
  int dp_shard = 1;      ///< shards of parameters, gradients and optimizer states; -1: what is left
  int cp = 1;            ///< parts of a sequence (context parallelism)
  int tp = 1;            ///< parts of each matrix (tensor parallelism)
  int ep = 1;            ///< parts of the set of experts (expert parallelism)
  int pp = 1;            ///< stages (pipeline parallelism)

  /// The number of ranks: the product of all but ep, which takes no ranks of its own.
  int ranks() const { return pp * dp_replicate * dp_shard * cp * tp; }
  /// The number of ranks of one stage that have tokens of their own; those of a tp group have the
  /// same.
  int token_ranks() const { return dp_replicate * dp_shard * cp; }

  friend bool operator==(const ParallelDims&, const ParallelDims&) = default;
};

/// "dp_replicate 2, dp_shard 4": the ways that divide by more than one; "one rank" if none does.
std::string to_string(const ParallelDims& dims);

/// `dims` with dp_shard = -1 replaced by what `world_size` leaves for it. ValueError, naming the
/// axes, unless every size is at least 1, they multiply to world_size (ep excepted), cp divides ep,
/// and ep divides dp_shard x cp or, if tp is not 1, is 1 or tp. An ep of 1 means that experts are
/// divided like the rest.
ParallelDims resolved(ParallelDims dims, int world_size);

/// The meshes of one world. The three share their groups.
struct ParallelMeshes {
  DeviceMesh world;  ///< pp, dp_replicate, dp_shard, cp, tp
  DeviceMesh dense;  ///< pp, replicate, shard (dp_shard x cp), tp: how dense parameters are divided
  /// pp, replicate, shard (dp_shard x cp / ep), ep, tp: how experts are. Where ep is tp, pp,
  /// replicate, shard (dp_shard x cp), ep.
  DeviceMesh expert;
  /// The ranks of this stage: those that do equal work, whose times can be compared.
  std::shared_ptr<ProcessGroup> stage;

  /// What fully_shard takes: the axes replicate and shard. Its ranks have tokens of their own, so
  /// losses and counts of tokens are summed over them (fsdp::State::ranks).
  DeviceMesh fsdp() const { return dense.slice({"replicate", "shard"}); }
  DeviceMesh expert_fsdp() const { return expert.slice({"replicate", "shard"}); }

  /// The axes of ParallelDims with more than one rank, by the name of their group, which is that of
  /// the first mesh that made it. Axes that have their ranks in common are joined: "tp+ep".
  std::map<std::string, std::string> axes_of_groups() const;
};

/// The meshes over all ranks of `group`. Collective. ValueError as resolved() throws it.
ParallelMeshes make_meshes(std::shared_ptr<ProcessGroup> group, const ParallelDims& dims);

}  // namespace moegrad
