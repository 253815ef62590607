// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "framework/tensor/named_tensor.h"

namespace moegrad::optim {

/// Note [Blocks without a gradient]
/// The experts of a layer are stacked in one parameter, so an expert that no token chose has a
/// gradient of zeros, and an ordinary update decays its weights and moments. Hugging Face keeps one
/// parameter per expert, and since transformers 4.53 an expert without tokens has no gradient at
/// all: torch's optimizers then leave its weights, its moments and its count of steps alone.
///
/// An optimizer does the same with the row blocks that its option `skip_missing_grad` names (one
/// per expert, nn::expert_blocks): it treats a block as a parameter of its own, which has a
/// gradient in a step if
///
///     any element of the block's gradient is not zero, on any rank, or
///     Optimizer::mark_used() has said so since the last step, on any rank
///
/// The ranks agree on it by one all-reduce per step and group, so that neither world size nor mesh
/// nor where shards begin makes a difference. Without marks there is one difference from Hugging
/// Face: an expert all of whose tokens have a gradient of exactly zero (in the last mixture layer,
/// tokens that are not scored, such as the last of a sequence) counts as one without tokens. Marks
/// remove it.

/// Number of equal row blocks (of dimension 0, of the whole parameter) by parameter name.
using RowBlocks = std::map<std::string, std::int64_t>;

/// The elements [begin, end) of what this rank holds of a parameter that belong to one row block;
/// empty for a block that other ranks hold.
struct BlockRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  template <class T>
  std::span<T> of(std::span<T> all) const {
    return all.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  }
};

/// One range per block.
std::vector<BlockRange> block_ranges(const Tensor& parameter, std::int64_t blocks);

/// True unless all of `values` [begin, end) are zero; a NaN is not zero.
bool has_nonzero(const Tensor& values, const BlockRange& range);

}  // namespace moegrad::optim
