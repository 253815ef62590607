// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <iterator>
#include <vector>

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

/// Rows [first, first + count) of a tensor.
struct RowRun {
  std::int64_t first = 0, count = 0;

  friend bool operator==(const RowRun&, const RowRun&) = default;
};

/// Rows sorted by expert, and within an expert by source: for grouped matmuls, and for what ranks
/// send each other. Expert e has rows [offsets[e], offsets[e + 1]), those of source 0 first, then
/// those of source 1, and so on. An expert without tokens has none.
class RowGroups {
 public:
  RowGroups() = default;  // of no experts
  /// counts [S, E]: how many rows each of S sources has for each of E experts. ValueError unless
  /// there is a source, all have as many counts, and these are at least 0 and at most 2^53
  /// together.
  RowGroups(std::int64_t sources, std::vector<std::int64_t> counts);

  std::int64_t sources() const { return sources_; }
  /// The same rows, whose sources are parts of one micro-batch: the gradient of a weight is one
  /// term, their sum. Otherwise each source is a micro-batch, and a term of its own (Note [The sum
  /// of a gradient]).
  RowGroups of_one_micro_batch() const {
    auto groups = *this;
    groups.one_micro_batch_ = true;
    return groups;
  }
  bool is_one_micro_batch() const { return one_micro_batch_; }
  std::int64_t experts() const { return std::ssize(offsets_) - 1; }
  std::int64_t rows() const { return offsets_.back(); }
  const std::vector<std::int64_t>& offsets() const { return offsets_; }             // [E + 1]
  std::vector<std::int64_t> counts() const;                                         // [E]
  const std::vector<std::int64_t>& counts_by_source() const { return by_source_; }  // [S, E]
  /// Where the rows of each source and expert are, [S, E].
  std::vector<RowRun> runs() const;
  /// counts_by_source() in equal parts: the sum of each. ValueError unless they can be cut so.
  std::vector<std::int64_t> sums_of_parts(std::int64_t parts) const;

  friend bool operator==(const RowGroups&, const RowGroups&) = default;

 private:
  std::int64_t sources_ = 1;
  bool one_micro_batch_ = false;
  std::vector<std::int64_t> by_source_, offsets_ = {0};
};

/// Which rows go where, and in which order. Slot s = t * K + j is the j-th expert of token t. Each
/// slot has one row; none is dropped. The rows are sorted by expert, and within an expert by slot.
///
/// dispatch_rows sends them to S ranks. These have E / S experts each, rank 0 the first ones, and
/// receive the rows of all ranks for their own. Where nothing is sent, all E experts are here, and
/// `received` is `sent`.
struct RowPlan {
  Tensor row_of_slot;       // [R] int64, R = T * K
  Tensor slot_of_row;       // [R] int64, its inverse
  std::int64_t tokens = 0;  // T
  std::int64_t top_k = 0;   // K
  RowGroups sent = {};      // this rank's R rows, for all experts
  RowGroups received = {};  // the M rows that arrive, for the experts here, by source
};

/// A stable counting sort of the slots of `indices` [T, K], int64, by expert. An expert outside
/// [0, num_experts) is a ValueError that names its token. All experts are here. With `token_parts`
/// the tokens are that many sources of `received`, parts of one micro-batch; ValueError unless they
/// divide T.
RowPlan plan_routing(const Tensor& indices, std::int64_t num_experts, std::int64_t token_parts = 1);

/// Copies each token's row to its K rows:
///
///     rows[r, :] = x[slot_of_row[r] / K, :]              x: [T, H]   rows: [R, H]
///
/// The gradient of a token is the sum of its rows' gradients, added in the order of its slots. x is
/// float32, float64 or bfloat16; sums of bfloat16, here and below, are made in float32 and rounded
/// once.
Tensor permute_rows(const Tensor& x, const RowPlan& plan);

/// The reverse of permute_rows: each token is the sum of its rows, added in the order of its slots:
///
///     y[t, :] = sum_j rows[row_of_slot[t * K + j], :]              rows: [R, H]   y: [T, H]
///
/// The op that makes the rows applies their weights: swiglu takes weights.
///
/// Source of both ops, and of routing without dropped or padded rows: Gale et al., "MegaBlocks",
/// 2022, https://arxiv.org/abs/2211.15841
Tensor unpermute_rows(const Tensor& rows, const RowPlan& plan);

}  // namespace moegrad::ops
