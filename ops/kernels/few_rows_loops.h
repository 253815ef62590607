// SPDX-License-Identifier: Apache-2.0
#pragma once

// The loops of few_rows_matmul.h for one width of vectors: Note [Two vector widths].

#include <cstdint>

#include "ops/kernels/few_rows_matmul.h"
#include "ops/kernels/simd.h"

namespace moegrad::kernels::few_rows_loops {

template <class T, class V, int kRows>
void add_steps(const T* a, std::int64_t row_stride, const T* b, std::int64_t steps, T* c,
               std::int64_t c_stride) {
  constexpr int kVecs = kFewRowsColumns / V::kLanes;
  V sum[kRows][kVecs];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) sum[i][v] = V::load(c + i * c_stride + v * V::kLanes);
  }
  for (std::int64_t p = 0; p < steps; ++p) {
    V left[kRows];
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) left[i] = V::broadcast(a[i * row_stride + p]);
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      const auto right = V::load(b + p * kFewRowsColumns + v * V::kLanes);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) accumulate(sum[i][v], left[i], right);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) sum[i][v].store(c + i * c_stride + v * V::kLanes);
  }
}

template <class T, class V, int kRows>
constexpr void add_rows(FewRowsLoops<T>& loops) {
  loops.by_rows[kRows - 1] = &add_steps<T, V, kRows>;
  if constexpr (kRows > 1) add_rows<T, V, kRows - 1>(loops);
}

/// The loops of vectors V.
template <class T, class V>
constexpr FewRowsLoops<T> loops() {
  // The sums and as many vectors as rows, and one more, are in registers: 3 * 4 + 4 of 16 floats'.
  constexpr int kMostRows = V::kLanes == 16 ? 8 : V::kLanes == 8 ? 3 : 1;
  FewRowsLoops<T> loops{};
  loops.most_rows = kMostRows;
  add_rows<T, V, kMostRows>(loops);
  return loops;
}

}  // namespace moegrad::kernels::few_rows_loops
