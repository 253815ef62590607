// SPDX-License-Identifier: Apache-2.0
#pragma once

// The loops of few_steps_matmul.h for one width of vectors: Note [Two vector widths].

#include <cstdint>

#include "ops/kernels/few_steps_matmul.h"
#include "ops/kernels/simd.h"

namespace moegrad::kernels::few_steps_loops {

inline constexpr std::int64_t kRowsAhead = 4;

// kRows rows at once. All their elements of A stay in registers.
template <class T, class V, int kSteps, int kRows>
void multiply_row_group(const LeftOperand<T>& a, std::int64_t i0, const T* b, std::int64_t b_stride,
                        std::int64_t columns, T* c, std::int64_t c_stride, bool adds) {
  V left[kRows][kSteps + 1];
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int p = 0; p < kSteps; ++p) {
      left[i][p] = V::broadcast(a.data[(i0 + i) * a.row_stride + p * a.k_stride]);
    }
  }
  for (std::int64_t j = 0; j < columns; j += V::kLanes) {
    // Prefetches the rows that are written next.
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) __builtin_prefetch(c + (kRowsAhead + i) * c_stride + j, 1);
    V sum[kRows];
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) sum[i] = V::zero();
#pragma GCC unroll 8
    for (int p = 0; p < kSteps; ++p) {
      const auto right = V::load(b + p * b_stride + j);
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) accumulate(sum[i], left[i][p], right);
    }
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
      T* const to = c + i * c_stride + j;
      (adds ? V::load(to) + sum[i] : sum[i]).store(to);
    }
  }
}

template <class T, class V, int kSteps>
void multiply_rows(const LeftOperand<T>& a, const T* b, std::int64_t b_stride, std::int64_t rows,
                   std::int64_t columns, T* c, std::int64_t c_stride, bool adds) {
  constexpr int kRows = (V::kLanes == 16 ? 16 : 8) / (kSteps > 4 ? 8 : 4);
  std::int64_t i = 0;
  for (; i + kRows <= rows; i += kRows) {
    multiply_row_group<T, V, kSteps, kRows>(a, i, b, b_stride, columns, c + i * c_stride, c_stride,
                                            adds);
  }
  for (; i < rows; ++i) {
    multiply_row_group<T, V, kSteps, 1>(a, i, b, b_stride, columns, c + i * c_stride, c_stride,
                                        adds);
  }
}

template <class T, class V, int kSteps = kFewSteps>
constexpr void add_steps(FewStepsLoops<T>& loops) {
  loops.by_steps[kSteps] = &multiply_rows<T, V, kSteps>;
  if constexpr (kSteps > 0) add_steps<T, V, kSteps - 1>(loops);
}

/// The loops for vectors V.
template <class T, class V>
constexpr FewStepsLoops<T> loops() {
  FewStepsLoops<T> loops{};
  loops.lanes = V::kLanes;
  add_steps<T, V>(loops);
  return loops;
}

}  // namespace moegrad::kernels::few_steps_loops
