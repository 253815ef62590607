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

/// The elements [begin, end) of this rank's part of a parameter that belong to one row block. Empty
/// for a block that other ranks hold.
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
