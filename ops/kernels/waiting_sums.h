// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/kernels/halving.h"

namespace moegrad::kernels {

/// The sums of a tile that wait for their right halves: Note [Sums by halving].
template <class V, int kRows, int kVecs>
class WaitingSums {
 public:
  /// Called with the sum of each chain in turn: adds `joins` sums that wait to it. If it were a
  /// call, the sums of a tile would be in memory: clang inlines larger functions where `inline` is
  /// written out.
  inline void join(V (&sum)[kRows][kVecs], int joins) {
    for (; joins > 0; --joins) {
      --count_;
#pragma GCC unroll 12
      for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v) sum[i][v] = sums_[count_][i][v] + sum[i][v];
      }
    }
  }
  void push(const V (&sum)[kRows][kVecs]) {
#pragma GCC unroll 12
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) sums_[count_][i][v] = sum[i][v];
    }
    ++count_;
  }

 private:
  static constexpr int kMost = 2;  // of at most four chains
  static_assert(Chains::kMostChains == 4);
  V sums_[kMost][kRows][kVecs];
  int count_ = 0;
};

}  // namespace moegrad::kernels
