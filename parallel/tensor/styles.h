// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace moegrad::parallel {

/// How the ranks of a group have a tensor that goes into a module or comes out of it: alike on all
/// of them, or each its part along a dimension. Negative dimensions count from the last one.
struct TensorLayout {
  std::optional<std::int64_t> dim;  // that is cut

  friend bool operator==(const TensorLayout&, const TensorLayout&) = default;
};
inline TensorLayout Replicate() { return {}; }
inline TensorLayout Shard(std::int64_t dim) { return {.dim = dim}; }

/// A Linear whose W is cut by rows, so y by columns. x: Replicate() or, under sequence parallelism,
/// Shard(0). y: Shard(-1), or Replicate(), which gathers it.
struct ColwiseParallel {
  TensorLayout input_layouts = Replicate();
  TensorLayout output_layouts = Shard(-1);
  /// The rows of W are this many blocks of one height, such as the heads of a projection, which
  /// stay whole. Fewer blocks than ranks: as many neighbours have the same one, and their gradients
  /// of it are added. 0: the rows may be cut anywhere.
  std::int64_t blocks = 0;
  /// Above 1: rows travel in so many runs, while others are multiplied (Note [Linear layers on
  /// several ranks]).
  std::int64_t tiles = 1;
};

/// A Linear whose W is cut by columns, and x, Shard(-1) (or Replicate(), which is cut), so that y
/// is a sum over the ranks: y Replicate() or, under sequence parallelism, Shard(0). The bias is
/// added once. Or an Embedding whose rows are cut, where x is ids, alike on all ranks, and
/// input_layouts is Replicate().
struct RowwiseParallel {
  TensorLayout input_layouts = Shard(-1);
  TensorLayout output_layouts = Replicate();
  std::int64_t tiles = 1;  // as of ColwiseParallel
};

/// A module that computes with all of its parameters on its part of what comes in, along
/// sequence_dim: 0 for rows, as of a norm between linear layers under sequence parallelism, 1 for
/// the heads of a norm of heads [T, N, D]. So each rank has a summand of the gradients of the
/// parameters, and these are added over the ranks, in each backward by itself.
struct SequenceParallel {
  std::int64_t sequence_dim = 0;
};

/// Another layout for tensors that go into a module, in the order of Note [Tensors in arguments and
/// results] (undefined ones left out): from input_layouts to desired_input_layouts. An entry that
/// is missing, or equal in both, leaves its tensor as it is.
struct PrepareModuleInput {
  std::vector<TensorLayout> input_layouts;
  std::vector<TensorLayout> desired_input_layouts;
};
/// The same for tensors that come out.
struct PrepareModuleOutput {
  std::vector<TensorLayout> output_layouts;
  std::vector<TensorLayout> desired_output_layouts;
};

using ParallelStyle = std::variant<ColwiseParallel, RowwiseParallel, SequenceParallel,
                                   PrepareModuleInput, PrepareModuleOutput>;

/// Paths of modules and what becomes of them. In a path * and ? stand for letters of a name between
/// two dots, as in "layers.*.self_attn.?_proj".
using ParallelPlan = std::vector<std::pair<std::string, ParallelStyle>>;

}  // namespace moegrad::parallel
