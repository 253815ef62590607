// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "framework/tensor/layout.h"
#include "ops/kernels/halving.h"

namespace moegrad::kernels {

// Note [Matmul order]
// Every element of every product here is a sum over the reduction index p by halving (Note [Sums by
// halving]), whose parts of at most 128 terms are chains of fused multiply-adds from zero:
//
//     y = 0;    y = fma(a[p], b[p], y),   p ascending
//
// Tiles, packing, layouts and threads choose which rows and columns are computed together, never
// the order inside a sum. So results have the same bits for every layout of B (ND, NZ, transposed)
// and every number of rows and threads. Attention's products are single chains
// (ops/kernels/attention_sizes.h).

/// Rows of the largest tile of any vector width.
inline constexpr std::int64_t kMostTileRows = 8;

/// Cache lines that a later tile will read. The tile prefetches them while it computes: the line at
/// `line` every TileSet::steps_per_fetch(rows) steps of the reduction. `line` then advances by
/// `step` bytes, and by `jump` after every eighth line. If the steps are fast, the tile also
/// prefetches the lines `second` and `third` bytes further on, because memory serves several
/// streams faster than one. If `step` is 0, nothing is prefetched.
struct Ahead {
  static constexpr std::int64_t kRun = 8;
  const void* line = nullptr;
  std::ptrdiff_t step = 0;
  std::ptrdiff_t jump = 0;
  std::ptrdiff_t second = 0;
  std::ptrdiff_t third = 0;
};

/// What becomes of the values in C.
enum class Start : std::uint8_t {
  kZero,     // they are overwritten
  kGoesOn,   // the only chain starts from them instead of zero
  kIsAdded,  // they are added, C + sum
};

/// C[i, j] = sum over p of A[i, p] B[p, j], for a few rows i and columns j of some panels.
///
/// A is a strip [k, strip_rows], A[i, p] = a[p * strip_rows + i], where k is the steps of all
/// chains; B is panels [k, 16], panel_stride elements apart; C has rows of ldc elements.
template <class T>
using Tile = void (*)(const T* a, const T* b, std::int64_t panel_stride, const Chains& chains, T* c,
                      std::int64_t ldc, Start start, const Ahead& ahead);

/// The tiles of one vector width.
template <class T>
struct TileSet {
  static constexpr int kMostPanels = 8;

  /// The number of panels at a time that keep the multiply-adds busy with strips of at most `rows`
  /// <= strip_rows rows. Fewer rows need more panels.
  std::int64_t panels(std::int64_t rows) const { return most_panels[rows - 1]; }
  std::int64_t steps_per_fetch(std::int64_t rows) const {
    return by_rows_steps_per_fetch[rows - 1];
  }
  /// The tile of `rows` <= strip_rows rows and up to panels(rows) or panels(rows + 1) panels.
  Tile<T> tile(std::int64_t rows, std::int64_t panels = 1) const {
    return by_rows[rows - 1][panels - 1];
  }

  std::int64_t strip_rows;
  std::int64_t most_panels[kMostTileRows];
  std::int64_t by_rows_steps_per_fetch[kMostTileRows];
  Tile<T> by_rows[kMostTileRows][kMostPanels];
};

/// `tile` of one panel at the right edge. Only `columns` columns of C exist, so the whole tile is
/// computed in a buffer.
template <class T>
void multiply_edge_tile(Tile<T> tile, std::int64_t rows, const T* a, const T* b,
                        const Chains& chains, T* c, std::int64_t ldc, std::int64_t columns,
                        Start start) {
  alignas(64) std::array<T, kMostTileRows * kNzBlock> whole{};
  for (std::int64_t i = 0; start != Start::kZero && i < rows; ++i) {
    std::copy_n(c + i * ldc, columns, whole.data() + i * kNzBlock);
  }
  tile(a, b, 0, chains, whole.data(), kNzBlock, start, {});
  for (std::int64_t i = 0; i < rows; ++i) {
    std::copy_n(whole.data() + i * kNzBlock, columns, c + i * ldc);
  }
}

}  // namespace moegrad::kernels
