// SPDX-License-Identifier: Apache-2.0
#pragma once

// The loops of few_rows_matmul.h for one width of vectors: Note [Two vector widths].

#include <cstdint>

#include "framework/tensor/layout.h"
#include "ops/kernels/few_rows_matmul.h"
#include "ops/kernels/simd.h"
#include "ops/kernels/transpose_8x8.h"

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

// Lane j of turned[p] = stored[j * 16 + p], for four steps p and eight columns j.
inline void turn(const float* stored, Vec<float, 32> (&turned)[4]) {
  Vec<float, 32> in[4], pairs[4];
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    in[r] = Vec<float, 32>::load_halves(stored + r * kNzBlock, stored + (r + 4) * kNzBlock);
  }
#pragma GCC unroll 2
  for (int r = 0; r < 4; r += 2) {
    pairs[r] = low(in[r], in[r + 1]);
    pairs[r + 1] = high(in[r], in[r + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    turned[2 * i] = low_pairs(pairs[i], pairs[i + 2]);
    turned[2 * i + 1] = high_pairs(pairs[i], pairs[i + 2]);
  }
}

#if defined(__AVX512F__)

// turn() for sixteen steps and sixteen columns.
inline void turn(const float* stored, Vec<float, 64> (&turned)[16]) {
  __m512 in[16], pairs[16], quads[16];
#pragma GCC unroll 16
  for (int r = 0; r < 16; ++r) in[r] = _mm512_loadu_ps(stored + r * kNzBlock);
#pragma GCC unroll 8
  for (int r = 0; r < 16; r += 2) {
    pairs[r] = _mm512_unpacklo_ps(in[r], in[r + 1]);
    pairs[r + 1] = _mm512_unpackhi_ps(in[r], in[r + 1]);
  }
  // Lane l of quads[r + c] holds step 4 l + c of columns r ... r + 3.
#pragma GCC unroll 4
  for (int r = 0; r < 16; r += 4) {
    quads[r] = _mm512_shuffle_ps(pairs[r], pairs[r + 2], 0x44);
    quads[r + 1] = _mm512_shuffle_ps(pairs[r], pairs[r + 2], 0xee);
    quads[r + 2] = _mm512_shuffle_ps(pairs[r + 1], pairs[r + 3], 0x44);
    quads[r + 3] = _mm512_shuffle_ps(pairs[r + 1], pairs[r + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const auto low01 = _mm512_shuffle_f32x4(quads[c], quads[c + 4], 0x44);
    const auto low23 = _mm512_shuffle_f32x4(quads[c], quads[c + 4], 0xee);
    const auto high01 = _mm512_shuffle_f32x4(quads[c + 8], quads[c + 12], 0x44);
    const auto high23 = _mm512_shuffle_f32x4(quads[c + 8], quads[c + 12], 0xee);
    turned[c].v = _mm512_shuffle_f32x4(low01, high01, 0x88);
    turned[c + 4].v = _mm512_shuffle_f32x4(low01, high01, 0xdd);
    turned[c + 8].v = _mm512_shuffle_f32x4(low23, high23, 0x88);
    turned[c + 12].v = _mm512_shuffle_f32x4(low23, high23, 0xdd);
  }
}

#endif

// How far ahead of the block that is being transposed B is prefetched.
constexpr std::int64_t kColumnsAhead = 4 * kNzBlock;

// kSteps steps at a time are transposed, for as many columns as V has lanes.
template <class V, int kSteps>
void add_stored(const float* a, const float* stored, float* c) {
#pragma GCC unroll 16
  for (int j = 0; j < kNzBlock; ++j) {
    __builtin_prefetch(stored + (kColumnsAhead + j) * kNzBlock);
  }
#pragma GCC unroll 2
  for (int j = 0; j < kNzBlock; j += V::kLanes) {
    auto sum = V::load(c + j);
#pragma GCC unroll 4
    for (int p = 0; p < kNzBlock; p += kSteps) {
      V turned[kSteps];
      turn(stored + j * kNzBlock + p, turned);
#pragma GCC unroll 16
      for (int s = 0; s < kSteps; ++s) accumulate(sum, V::broadcast(a[p + s]), turned[s]);
    }
    sum.store(c + j);
  }
}

template <class T, class V>
void turn_block(const T* stored, T* block) {
#pragma GCC unroll 16
  for (int j = 0; j < kNzBlock; ++j) {
    __builtin_prefetch(stored + (kColumnsAhead + j) * kNzBlock);
  }
#if defined(__AVX512F__)
  if constexpr (V::kLanes == 16) {
    V turned[kNzBlock];
    turn(stored, turned);
#pragma GCC unroll 16
    for (int p = 0; p < kNzBlock; ++p) turned[p].store(block + p * kFewRowsColumns);
    return;
  }
#endif
  for (int j = 0; j < kNzBlock; j += 8) {
    for (int p = 0; p < kNzBlock; p += 8) {
      transpose_8x8([&](int r) { return stored + (j + r) * kNzBlock + p; },
                    block + p * kFewRowsColumns + j, kFewRowsColumns);
    }
  }
}

template <class T, class V, int kRows>
constexpr void add_rows(FewRowsLoops<T>& loops) {
  loops.by_rows[kRows - 1] = &add_steps<T, V, kRows>;
  if constexpr (kRows > 1) add_rows<T, V, kRows - 1>(loops);
}

/// The loops for vectors V.
template <class T, class V>
constexpr FewRowsLoops<T> loops() {
  // Registers hold the sums, one vector per row, and one more: 3 * 4 + 4 of 16 for floats.
  constexpr int kMostRows = V::kLanes == 16 ? 8 : V::kLanes == 8 ? 3 : 1;
  FewRowsLoops<T> loops{};
  loops.turn = &turn_block<T, V>;
  loops.most_rows = kMostRows;
  add_rows<T, V, kMostRows>(loops);
  if constexpr (V::kLanes == 8) loops.add_stored = &add_stored<V, 4>;
#if defined(__AVX512F__)
  if constexpr (V::kLanes == 16) loops.add_stored = &add_stored<V, 16>;
#endif
  return loops;
}

}  // namespace moegrad::kernels::few_rows_loops
