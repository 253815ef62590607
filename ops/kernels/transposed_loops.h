// SPDX-License-Identifier: Apache-2.0
#pragma once

// The loops of transposed_matmul.h for one width of vectors: Note [Two vector widths].

#include <cstdint>

#include "framework/tensor/layout.h"
#include "ops/kernels/simd.h"
#include "ops/kernels/transposed_matmul.h"
#include "ops/kernels/waiting_sums.h"

namespace moegrad::kernels::transposed_loops {

// kRows rows of C^T.
template <class T, class V, int kRows, int kVecs>
void multiply_stored_rows(const T* b, std::int64_t block_step, const T* panel, const Chains& chains,
                          T* tile, bool adds) {
  constexpr int kLanes = V::kLanes, kWidth = kVecs * kLanes;
  V sum[kRows][kVecs];
  WaitingSums<V, kRows, kVecs> waiting;
  for (int chain = 0;; ++chain) {  // at least one
#pragma GCC unroll 12
    for (int j = 0; j < kRows; ++j) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) sum[j][v] = V::zero();
    }
    auto k = chains.steps[chain];
    for (; k >= kNzBlock; k -= kNzBlock) {
#pragma GCC unroll 12
      for (int j = 0; j < kRows; ++j) __builtin_prefetch(b + (kRows + j) * kNzBlock);
#pragma GCC unroll 16
      for (int u = 0; u < kNzBlock; ++u) {
        V right[kVecs];
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) {
          right[v] = V::load(panel + u * kWidth + v * kLanes);
        }
#pragma GCC unroll 12
        for (int j = 0; j < kRows; ++j) {
          const auto left = V::broadcast(b[j * kNzBlock + u]);
#pragma GCC unroll 4
          for (int v = 0; v < kVecs; ++v) accumulate(sum[j][v], left, right[v]);
        }
      }
      panel += kNzBlock * kWidth;
      b += block_step;
    }
    for (std::int64_t u = 0; u < k; ++u) {
#pragma GCC unroll 12
      for (int j = 0; j < kRows; ++j) {
        const auto left = V::broadcast(b[j * kNzBlock + u]);
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) {
          accumulate(sum[j][v], left, V::load(panel + v * kLanes));
        }
      }
      panel += kWidth;
    }
    waiting.join(sum, chains.joins[chain]);
    if (chain + 1 == chains.count) break;
    waiting.push(sum);
  }
#pragma GCC unroll 12
  for (int j = 0; j < kRows; ++j) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      T* const to = tile + j * kWidth + v * kLanes;
      (adds ? V::load(to) + sum[j][v] : sum[j][v]).store(to);
    }
  }
}

template <class T, class V, int kVecs, int kRows>
void multiply_by(const T* b, std::int64_t block_step, const T* panel, const Chains& chains, T* tile,
                 std::int64_t rows, bool adds) {
  for (std::int64_t j = 0; j < rows; j += kRows) {
    multiply_stored_rows<T, V, kRows, kVecs>(b + j * kNzBlock, block_step, panel, chains,
                                             tile + j * kVecs * V::kLanes, adds);
  }
}

// Rows at once. Twelve chains hide the latency of the multiply-adds with room to spare, eight just
// hide it. The panel's vectors need registers, too.
template <class V, int kVecs>
constexpr int rows_at_once(bool whole_group) {
  if (V::kLanes == 16) return kVecs == 1 ? (whole_group ? 12 : 8) : 8;
  if (V::kLanes == 8) return whole_group ? 12 / kVecs : 4;
  return kVecs > 4 ? 1 : 8 / kVecs;
}

template <class V>
constexpr int kUnit = V::kLanes == 16 ? 16 : 8;

template <class T, class V, int kUnits>
void multiply_rows(const T* b, std::int64_t block_step, const T* panel, const Chains& chains,
                   T* tile, std::int64_t rows, bool adds) {
  constexpr int kVecs = kUnits * kUnit<V> / V::kLanes;
  constexpr int kOfGroup = rows_at_once<V, kVecs>(true), kOfLast = rows_at_once<V, kVecs>(false);
  static_assert(kTransposedGroup % kOfGroup == 0 && kNzBlock % kOfLast == 0);
  if (rows == kTransposedGroup) {
    multiply_by<T, V, kVecs, kOfGroup>(b, block_step, panel, chains, tile, rows, adds);
  } else {
    multiply_by<T, V, kVecs, kOfLast>(b, block_step, panel, chains, tile, rows, adds);
  }
}

/// The loops for vectors V.
template <class T, class V>
constexpr TransposedLoops<T> loops() {
  return {kUnit<V>, {&multiply_rows<T, V, 1>, &multiply_rows<T, V, 2>, &multiply_rows<T, V, 3>}};
}

}  // namespace moegrad::kernels::transposed_loops
