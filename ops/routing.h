// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

/// Where the rows of routed tokens come from. Slot s = t * K + j is the j-th expert of token t;
/// each slot has one row.
struct Permutation {
  Tensor row_of_slot;       // [R] int64, R = T * K
  Tensor slot_of_row;       // [R] int64, its inverse
  std::int64_t tokens = 0;  // T
  std::int64_t top_k = 0;   // K
};

/// [S][E]: how many rows each of S sources has for each of E experts. Within an expert the rows of
/// source 0 come first, then those of source 1, and so on.
using SourceCounts = std::vector<std::vector<std::int64_t>>;

/// ValueError unless each source has a count for each of `experts`, none negative.
void check_sources(std::string_view op, const SourceCounts& sources, std::int64_t experts);

/// Rows in groups, one for each expert, for grouped matmuls: expert e has rows
/// [offsets[e], offsets[e + 1]). An expert without tokens has none.
struct RowGroups {
  std::vector<std::int64_t> offsets;  // [E + 1]
  std::vector<std::int64_t> counts;   // [E]
  /// The rows of an expert by source, if they come from several (Note [The sum of a gradient]).
  SourceCounts sources = {};
};

/// The groups of rows that come from these sources. ValueError as check_sources(), and for none.
RowGroups group_rows(const SourceCounts& sources);

/// The order of routed rows: by expert, and within an expert by slot. No row is dropped.
struct RoutingPlan {
  Permutation permutation;
  RowGroups groups;
};

/// A stable counting sort of the slots of `indices` [T, K], int64, by expert. An expert outside
/// [0, num_experts) is a ValueError that names its token.
RoutingPlan plan_routing(const Tensor& indices, std::int64_t num_experts);

/// Copies each token's row to its K rows:
///
///     rows[r, :] = x[slot_of_row[r] / K, :]              x: [T, H]   rows: [R, H]
///
/// The gradient of a token is the sum of its rows' gradients, added in the order of its slots.
Tensor permute_rows(const Tensor& x, const Permutation& permutation);

/// The reverse of permute_rows: each token is the sum of its rows, added in the order of its slots:
///
///     y[t, :] = sum_j rows[row_of_slot[t * K + j], :]              rows: [R, H]   y: [T, H]
///
/// The op that makes the rows applies their weights: swiglu takes weights.
///
/// Source of both ops, and of routing without dropped or padded rows: Gale et al., "MegaBlocks",
/// 2022, https://arxiv.org/abs/2211.15841
Tensor unpermute_rows(const Tensor& rows, const Permutation& permutation);

}  // namespace moegrad::ops
