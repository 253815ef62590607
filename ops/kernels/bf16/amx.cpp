// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/bf16/kernels.h"
#include "ops/kernels/bf16/pack.h"
#include "ops/kernels/bf16/tile_loops.h"

// g++'s name, and that of clang 14.
#if defined(__AMX_BF16__) || defined(__AMXBF16__)
#define MOEGRAD_HAS_AMX
#include <immintrin.h>
#endif

namespace moegrad::kernels::bf16 {

#ifdef MOEGRAD_HAS_AMX
namespace {

struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t bytes_of_row[16] = {};
  std::uint8_t rows[16] = {};

  constexpr TileConfig() {
    for (int tile = 0; tile < 8; ++tile) {
      bytes_of_row[tile] = 64;
      rows[tile] = 16;
    }
  }
};
// Constant: g++ 12 takes the intrinsic to read eight bytes, and would not write the others before.
constexpr TileConfig kTiles;

void begin() { _tile_loadconfig(&kTiles); }

void end() { _tile_release(); }

// C += or = what the tiles have left in `sums` [32, 16 kPanels].
template <int kPanels>
void give(const float* sums, std::int64_t rows, float* c, std::int64_t ldc, bool adds) {
  for (std::int64_t i = 0; i < rows; ++i, c += ldc, sums += kPanels * kPanel) {
    for (int v = 0; v < kPanels; ++v) {
      const auto sum = _mm512_loadu_ps(sums + v * kPanel);
      _mm512_storeu_ps(c + v * kPanel,
                       adds ? _mm512_add_ps(_mm512_loadu_ps(c + v * kPanel), sum) : sum);
    }
  }
}

// Up to 32 rows by 32 columns.
template <bool kTwoLeft, int kPanels>
void multiply(const std::byte* a, const std::byte* b, std::int64_t b_stride, std::int64_t units,
              std::int64_t rows, float* c, std::int64_t ldc, bool adds) {
  static_assert(kPanels <= 2);
  const std::byte* const second_a = a + units * kUnitBytes;
  constexpr int kRow = 64;
  _tile_zero(0);
  if constexpr (kPanels == 2) _tile_zero(1);
  if constexpr (kTwoLeft) _tile_zero(2);
  if constexpr (kTwoLeft && kPanels == 2) _tile_zero(3);
  for (std::int64_t unit = 0; unit < units; ++unit) {
    const auto at = unit * kUnitBytes;
    _tile_loadd(4, a + at, kRow);
    _tile_loadd(6, b + at, kRow);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kPanels == 2) {
      _tile_loadd(7, b + b_stride + at, kRow);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kTwoLeft) {
      _tile_loadd(5, second_a + at, kRow);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kPanels == 2) _tile_dpbf16ps(3, 5, 7);
    }
  }
  constexpr int kColumns = kPanels * static_cast<int>(kPanel);
  alignas(64) float sums[(kTwoLeft ? 2 : 1) * kPanel * kColumns];
  const bool direct = !adds && rows == (kTwoLeft ? 2 : 1) * kPanel;
  float* const to = direct ? c : sums;
  const auto stride = direct ? ldc : kColumns;
  _tile_stored(0, to, stride * 4);
  if constexpr (kPanels == 2) _tile_stored(1, to + kPanel, stride * 4);
  if constexpr (kTwoLeft) _tile_stored(2, to + kPanel * stride, stride * 4);
  if constexpr (kTwoLeft && kPanels == 2)
    _tile_stored(3, to + kPanel * stride + kPanel, stride * 4);
  if (!direct) give<kPanels>(sums, rows, c, ldc, adds);
}

constexpr Loops make_loops() {
  Loops loops{};
  loops.order = PairOrder::kNeighbours;
  loops.left_unit_bytes = kUnitBytes;
  loops.pack_left = &pack_unit_of_rows;
  loops.left_row_bytes = 64;
  loops.most_rows = 32;
  for (int rows = 1; rows <= loops.most_rows; ++rows) {
    loops.panels[rows] = 2;
    loops.tiles[rows][1] = rows > kPanel ? &multiply<true, 1> : &multiply<false, 1>;
    loops.tiles[rows][2] = rows > kPanel ? &multiply<true, 2> : &multiply<false, 2>;
  }
  loops.round = &tile_loops::round_sums<Vec<float, 64>>;
  loops.begin = &begin;
  loops.end = &end;
  return loops;
}

}  // namespace
#endif

const Loops* amx_loops() {
#ifdef MOEGRAD_HAS_AMX
  static constexpr auto kLoops = make_loops();
  return &kLoops;
#else
  return nullptr;
#endif
}

}  // namespace moegrad::kernels::bf16
