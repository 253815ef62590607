// SPDX-License-Identifier: Apache-2.0
#pragma once

// The tiles of matmul_tile.h for one width of vectors: Note [Two vector widths].

#include <cstdint>

#include "framework/tensor/layout.h"
#include "ops/kernels/matmul_tile.h"
#include "ops/kernels/simd.h"
#include "ops/kernels/waiting_sums.h"

namespace moegrad::kernels::matmul_tile_loops {

// Rows of the largest tile. With 6 x 2 vectors the sums fill twelve of sixteen registers, with
// 8 x 3 vectors twenty-four of thirty-two.
template <class V>
constexpr int kStripRows = V::kLanes == 16  ? 8
                           : V::kLanes == 8 ? 6
                                            : 2;

// Two multiply-adds start per cycle and take four cycles, so eight chains just keep them busy. With
// nine or more they stay busy when a load comes late.
template <class V>
constexpr int panels_at_once(int rows) {
  constexpr int kByRows[3][9] = {{0, 8, 6, 4, 3, 3, 3, 3, 3},   // one vector is a panel
                                 {0, 4, 2, 3, 3, 1, 1, 0, 0},   // two vectors are a panel
                                 {0, 2, 1, 0, 0, 0, 0, 0, 0}};  // four vectors are a panel
  return kByRows[V::kLanes == 16 ? 0 : V::kLanes == 8 ? 1 : 2][rows];
}

// The faster the steps are, the more must be prefetched meanwhile.
template <class V>
constexpr int steps_per_fetch(int rows) {
  return V::kLanes == 16 || rows <= 4 ? 1 : 4;
}

// How many of the kVecs vectors a tile of kRows rows computes before it computes the others, so
// that the sums leave registers for the operands.
template <class V>
constexpr int vectors_at_once(int rows, int vecs) {
  constexpr int kMostSums = V::kLanes == 16 ? 24 : 12;
  int most = vecs;
  while (rows * most > kMostSums || vecs % most != 0) --most;
  return most;
}

// One step. The vectors of B at b, or the elements of A at a, whichever are fewer, are kept in
// registers while the others are loaded.
template <class T, class V, int kRows, int kFirst, int kVecs>
inline void add_step(const T* a, const T* b, std::int64_t panel_stride, V (&sum)[kRows][kVecs]) {
  constexpr int kPerPanel = kNzBlock / V::kLanes;
  const auto right_at = [&](int v) {
    return V::load(b + (kFirst + v) / kPerPanel * panel_stride +
                   (kFirst + v) % kPerPanel * V::kLanes);
  };
  if constexpr (kVecs < kRows) {
    V right[kVecs];
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) right[v] = right_at(v);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const auto left = V::broadcast(a[i]);
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) accumulate(sum[i][v], left, right[v]);
    }
  } else {
    V left[kRows];
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) left[i] = V::broadcast(a[i]);
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      const auto right = right_at(v);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) accumulate(sum[i][v], left[i], right);
    }
  }
}

// Vectors kFirst ... kFirst + kVecs - 1 of the panels. With four steps at a time and constant
// strides, almost only multiply-adds remain to be issued. Instructions are scarce on a core whose
// other hardware thread is busy.
template <class T, class V, int kRows, int kFirst, int kVecs>
void multiply_vectors(const T* a, const T* b, std::int64_t panel_stride, const Chains& chains, T* c,
                      std::int64_t ldc, Start start, const Ahead& ahead) {
  // A short reduction writes C faster than C can be fetched when a tile begins.
  constexpr int kLineElements = 64 / sizeof(T),
                kColumnsAhead = V::kLanes == 16 ? 2 * kVecs * V::kLanes : 0;
  c += kFirst * V::kLanes;
  V sum[kRows][kVecs];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int l = 0; l < kVecs * V::kLanes; l += kLineElements) {
      __builtin_prefetch(c + i * ldc + l + kColumnsAhead, 1);
    }
  }
  WaitingSums<V, kRows, kVecs> waiting;
  constexpr int kStepsPerFetch = steps_per_fetch<V>(kRows);
  const char* line = static_cast<const char*>(ahead.line);
  const bool fetches = ahead.step != 0;
  std::int64_t p = 0, end = 0;
  for (int chain = 0;; ++chain) {  // at least one
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) {
        sum[i][v] = start == Start::kGoesOn ? V::load(c + i * ldc + v * V::kLanes) : V::zero();
      }
    }
    end += chains.steps[chain];
    for (; p + 4 <= end; p += 4) {
#pragma GCC unroll 4
      for (int u = 0; u < 4; ++u) {
        if (u % kStepsPerFetch == 0 && fetches) {
          constexpr int kRunSteps = Ahead::kRun * kStepsPerFetch;
          __builtin_prefetch(line);
          if constexpr (kStepsPerFetch == 1) {
            __builtin_prefetch(line + ahead.second);
            __builtin_prefetch(line + ahead.third);
          }
          line += (p + u) % kRunSteps == kRunSteps - kStepsPerFetch ? ahead.jump : ahead.step;
        }
        add_step<T, V, kRows, kFirst, kVecs>(a + u * kStripRows<V>, b + u * kNzBlock, panel_stride,
                                             sum);
      }
      a += 4 * kStripRows<V>;
      b += 4 * kNzBlock;
    }
    for (; p < end; ++p) {
      add_step<T, V, kRows, kFirst, kVecs>(a, b, panel_stride, sum);
      a += kStripRows<V>;
      b += kNzBlock;
    }
    waiting.join(sum, chains.joins[chain]);
    if (chain + 1 == chains.count) break;
    waiting.push(sum);
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      T* const to = c + i * ldc + v * V::kLanes;
      (start == Start::kIsAdded ? V::load(to) + sum[i][v] : sum[i][v]).store(to);
    }
  }
}

template <class T, class V, int kRows, int kPanels, int kFirst = 0>
void multiply_tile(const T* a, const T* b, std::int64_t panel_stride, const Chains& chains, T* c,
                   std::int64_t ldc, Start start, const Ahead& ahead) {
  constexpr int kAll = kPanels * static_cast<int>(kNzBlock / V::kLanes);
  constexpr int kVecs = vectors_at_once<V>(kRows, kAll);
  multiply_vectors<T, V, kRows, kFirst, kVecs>(a, b, panel_stride, chains, c, ldc, start, ahead);
  if constexpr (kFirst + kVecs < kAll) {
    multiply_tile<T, V, kRows, kPanels, kFirst + kVecs>(a, b, panel_stride, chains, c, ldc, start,
                                                        {});
  }
}

template <class T, class V, int kRows, int kPanels>
constexpr void add_tiles(TileSet<T>& set) {
  set.by_rows[kRows - 1][kPanels - 1] = &multiply_tile<T, V, kRows, kPanels>;
  if constexpr (kPanels > 1) add_tiles<T, V, kRows, kPanels - 1>(set);
}

template <class T, class V, int kRows = kStripRows<V>>
constexpr void add_rows(TileSet<T>& set) {
  constexpr int kPanels = panels_at_once<V>(kRows);
  constexpr int kOfLongerStrips = kRows < kStripRows<V> ? panels_at_once<V>(kRows + 1) : 1;
  set.most_panels[kRows - 1] = kPanels;
  set.by_rows_steps_per_fetch[kRows - 1] = steps_per_fetch<V>(kRows);
  add_tiles<T, V, kRows, (kPanels > kOfLongerStrips ? kPanels : kOfLongerStrips)>(set);
  if constexpr (kRows > 1) add_rows<T, V, kRows - 1>(set);
}

/// The tiles for vectors V.
template <class T, class V>
constexpr TileSet<T> tile_set() {
  TileSet<T> set{};
  set.strip_rows = kStripRows<V>;
  add_rows<T, V>(set);
  return set;
}

}  // namespace moegrad::kernels::matmul_tile_loops
