// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "framework/tensor/named_tensor.h"
#include "optim/shard_groups.h"

namespace moegrad::optim {

/// Note [Blocks without a gradient]
/// The experts of a layer are stacked in one parameter, so an expert that no token chose has a
/// gradient of zeros, and an ordinary update decays its weights and moments. Hugging Face keeps one
/// parameter per expert, and since transformers 4.53 an expert without tokens has no gradient at
/// all: torch's optimizers then leave its weights, its moments and its count of steps alone.
///
/// An optimizer does the same with the row blocks that its option `skip_missing_grad` names (one
/// per expert, nn::expert_blocks). It treats a block like a separate parameter, which has a
/// gradient in a step if
///
///     any element of the block's gradient is not zero, on any rank, or
///     Optimizer::mark_used() has said so since the last step, on any rank
///
/// The ranks agree on it by one all-reduce per step and group. So world size, mesh and the borders
/// of shards make no difference. Without marks there is one difference from Hugging Face: an expert
/// whose tokens all have a gradient of exactly zero counts as an expert without tokens. (In the
/// last mixture layer, tokens that are not scored have such gradients, for example the last token
/// of a sequence.) Marks remove this difference.

/// Number of equal row blocks (of dimension 0, of the whole parameter) by parameter name.
using RowBlocks = std::map<std::string, std::int64_t>;

/// Decides which row blocks of an optimizer's parameters have a gradient in a step. Those that have
/// none are left out of the step; a parameter that is not named is one block, which always has one.
class MissingGradients {
 public:
  /// ValueError for row blocks of an unknown parameter, or a number of blocks that does not divide
  /// its rows.
  MissingGradients(const NamedTensors& parameters, const RowBlocks& row_blocks);

  /// Row blocks of a parameter; 1 without.
  std::int64_t num_blocks(const std::string& name) const;
  /// Optimizer::mark_used
  void mark_used(const std::string& name, std::span<const std::int64_t> uses);
  /// Looks at the gradients and marks of all ranks, and clears the marks. Collective over the ranks
  /// that hold parts of the parameters that have row blocks.
  void look();
  /// What the last look() has found of row block `block`.
  bool has_gradient(const std::string& name, std::int64_t block) const;

 private:
  using Flags = std::vector<std::int64_t>;  // one per block, 0 or 1

  NamedTensors parameters_;             // that have row blocks
  std::map<std::string, Flags> marks_;  // of each
  std::map<std::string, Flags> found_;
  ProcessGroups mesh_groups_;  // over which they are sharded or replicated
};

/// What this rank holds of row block `block` of `blocks` of `tensor`, as a flat view without graph,
/// empty for a block that other ranks hold; the tensor itself where blocks = 1. `like` says by its
/// ShardSpec which rows of the whole the tensor has. LayoutError unless it is contiguous.
Tensor row_block(const Tensor& tensor, const Tensor& like, std::int64_t blocks, std::int64_t block);

}  // namespace moegrad::optim
