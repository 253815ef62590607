// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ops/kernels/simd.h"

namespace moegrad::kernels {

/// target[c * target_stride + r] = row(r)[c] for r, c < 8, where row(r) is a pointer.
template <class T, class Row>
inline void transpose_8x8(const Row& row, T* target, std::int64_t target_stride) {
  if constexpr (sizeof(T) == 4) {
    // in[h + r] holds columns h ... h + 3 of rows r and r + 4, for h = 0, 4.
    Vec<float> in[8], pairs[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      const float *const first = row(r), *const second = row(r + 4);
      in[r] = Vec<float>::load_halves(first, second);
      in[r + 4] = Vec<float>::load_halves(first + 4, second + 4);
    }
#pragma GCC unroll 2
    for (int h = 0; h < 8; h += 4) {
      pairs[0] = low(in[h], in[h + 1]);
      pairs[1] = high(in[h], in[h + 1]);
      pairs[2] = low(in[h + 2], in[h + 3]);
      pairs[3] = high(in[h + 2], in[h + 3]);
      float* const to = target + h * target_stride;
      low_pairs(pairs[0], pairs[2]).store(to);
      high_pairs(pairs[0], pairs[2]).store(to + target_stride);
      low_pairs(pairs[1], pairs[3]).store(to + 2 * target_stride);
      high_pairs(pairs[1], pairs[3]).store(to + 3 * target_stride);
    }
    return;
  }
  for (int r = 0; r < 8; ++r) {
    for (int c = 0; c < 8; ++c) target[c * target_stride + r] = row(r)[c];
  }
}

}  // namespace moegrad::kernels
