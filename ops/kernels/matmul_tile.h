// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "framework/tensor/layout.h"
#include "ops/kernels/simd.h"

namespace moegrad::kernels {

// Note [Matmul order]
// Every element of every product here is one chain of fused multiply-adds, ascending over the
// reduction index from zero:
//
//     y = 0;    y = fma(a[p], b[p], y),   p = 0, ..., k - 1
//
// Tiles, packing, layouts and threads choose which rows and columns are computed together, never
// the order inside a chain; a reduction cut into cache blocks goes on from the stored y. So results
// are the same bits whatever the layout of B (ND, NZ, transposed), the number of rows or threads.

/// Rows of the largest tile: 6 x 16 floats fill twelve vector registers, 3 x 16 doubles would leave
/// none for the operands.
template <class T>
inline constexpr std::int64_t kTileRows = sizeof(T) == 4 ? 6 : 2;

/// One step of a chain. With AVX2 it is written as assembly: GCC 12 spills the accumulators of the
/// tile below to the stack when it may choose the operands of an intrinsic itself.
template <class T>
inline void accumulate(Vec<T>& sum, const Vec<T>& a, const Vec<T>& b) {
#if defined(__AVX2__) && defined(__FMA__)
  if constexpr (sizeof(T) == 4) {
    asm("vfmadd231ps %2, %1, %0" : "+x"(sum.v) : "x"(a.v), "x"(b.v));
  } else {
    asm("vfmadd231pd %2, %1, %0" : "+x"(sum.v) : "x"(a.v), "x"(b.v));
  }
#else
  sum = fma(a, b, sum);
#endif
}

/// Cache lines that a later tile will read, fetched while this one computes, one every four steps
/// of the reduction, from `line` on: `step` bytes apart, after every eighth `jump`.
struct Ahead {
  static constexpr std::int64_t kRun = 8;
  const void* line = nullptr;
  std::ptrdiff_t step = 0;
  std::ptrdiff_t jump = 0;
};

/// C[i, j] = chain over p of A[i, p] B[p, j], for kRows rows i and 16 columns j.
///
/// A is a strip [k, kTileRows], A[i, p] = a[p * kTileRows + i]; B is a panel [k, 16]; C has rows of
/// ldc elements. `resume`: the chains go on from what C holds instead of zero.
///
/// Four steps at a time with constant strides leave little but the multiply-adds to issue: on a
/// core whose other hardware thread is busy, instructions are what is scarce.
template <class T, int kRows>
void multiply_tile(const T* a, const T* b, std::int64_t k, T* c, std::int64_t ldc, bool resume,
                   const Ahead& ahead) {
  constexpr int kVecs = static_cast<int>(kNzBlock / Vec<T>::kLanes);
  Vec<T> sum[kRows][kVecs];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) __builtin_prefetch(c + i * ldc, 1);
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      sum[i][v] = resume ? Vec<T>::load(c + i * ldc + v * Vec<T>::kLanes) : Vec<T>::zero();
    }
  }
  const char* line = static_cast<const char*>(ahead.line);
  std::int64_t p = 0;
  for (; p + 4 <= k; p += 4) {
    __builtin_prefetch(line);
    line += p % 32 == 28 ? ahead.jump : ahead.step;
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) {
      Vec<T> right[kVecs];
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) right[v] = Vec<T>::load(b + v * Vec<T>::kLanes);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        const auto left = Vec<T>::broadcast(a[i]);
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) accumulate(sum[i][v], left, right[v]);
      }
      a += kTileRows<T>;
      b += kNzBlock;
    }
  }
  for (; p < k; ++p) {
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const auto left = Vec<T>::broadcast(a[i]);
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        accumulate(sum[i][v], left, Vec<T>::load(b + v * Vec<T>::kLanes));
      }
    }
    a += kTileRows<T>;
    b += kNzBlock;
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) sum[i][v].store(c + i * ldc + v * Vec<T>::kLanes);
  }
}

/// multiply_tile for `rows` <= kTileRows<T>.
template <class T>
using Tile = void (*)(const T*, const T*, std::int64_t, T*, std::int64_t, bool, const Ahead&);
template <class T>
Tile<T> tile_of(std::int64_t rows);

/// Few rows, of which a tile on one panel would leave multiply-adds waiting for each other, go
/// through several panels at once, `panel_stride` elements apart in B and 16 columns in C.
template <class T>
struct WideTile {
  void (*multiply)(const T* a, const T* b, std::int64_t panel_stride, std::int64_t k, T* c,
                   std::int64_t ldc, bool resume) = nullptr;
  std::int64_t panels = 1;
};
/// Of `rows` <= kTileRows<T>; panels is 1, and there is no function, where a tile on one panel
/// keeps the multiply-adds busy.
template <class T>
WideTile<T> wide_tile_of(std::int64_t rows);

/// The tile at the right edge: computed in full beside C, of which `columns` columns exist.
template <class T>
void multiply_edge_tile(std::int64_t rows, const T* a, const T* b, std::int64_t k, T* c,
                        std::int64_t ldc, std::int64_t columns, bool resume);

}  // namespace moegrad::kernels
