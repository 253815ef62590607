// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "framework/tensor/dtype.h"
#include "ops/kernels/bf16/order.h"

namespace moegrad::kernels::bf16 {

// Both operands of a tile are panels of 16: sixteen rows of A, or columns of B, for the steps of a
// part. A unit of a panel is kWords words for each of the sixteen, word by word:
//
//     panel[(unit * kWords + word) * 16 + i]
//
// Kernels may keep A in another form (Loops::pack_left).

/// Rows or columns of a panel.
inline constexpr std::int64_t kPanel = 16;
/// Bytes that a unit of a panel of words takes.
inline constexpr std::int64_t kUnitBytes = kWords * kPanel * 4;

/// Steps and lanes (rows of A, columns of B) of an operand: element (p, i) is data[p * step_stride
/// + i * lane_stride]; one of the strides is 1.
struct Lanes {
  const BFloat16* data;
  std::int64_t step_stride;
  std::int64_t lane_stride;
};

/// C[i, j] = the part's sum of A[i, p] B[p, j] for `rows` rows i of A and the columns j of some
/// panels of B, which are b_stride bytes apart. With `adds`, C + sum. The rows of C are ldc floats
/// apart.
using Tile = void (*)(const std::byte* a, const std::byte* b, std::int64_t b_stride,
                      std::int64_t units, std::int64_t rows, float* c, std::int64_t ldc, bool adds);

/// The loops of one kernel.
struct Loops {
  static constexpr int kMostRows = 32, kMostPanels = 8;

  PairOrder order;
  /// Writes `steps` <= kUnit steps of `lanes` <= 16 rows of A to a unit of a left panel, and the
  /// bytes of a unit.
  void (*pack_left)(const Lanes& from, std::int64_t steps, std::int64_t lanes, std::byte* unit);
  std::int64_t left_unit_bytes;
  /// The bytes from one row of a left panel to the next.
  std::int64_t left_row_bytes;
  /// The most rows of a tile. One of at most 16 begins at any row of a panel and ends in it, one of
  /// more takes whole panels.
  std::int64_t most_rows;
  /// The number of panels of B at a time that suits `rows` rows, and the tile for those or fewer.
  std::int64_t panels[kMostRows + 1];
  Tile tiles[kMostRows + 1][kMostPanels + 1];
  /// Rounds n sums, after which as many floats may be read as fill up a panel. Null: as plain code
  /// does.
  void (*round)(const float* from, BFloat16* to, std::int64_t n);
  /// What the thread does before its first tile and after its last.
  void (*begin)();
  void (*end)();
};

}  // namespace moegrad::kernels::bf16
