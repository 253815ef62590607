// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ops/kernels/simd.h"

namespace moegrad::kernels {

/// to(c)[r] = row(r)[c] for r, c < 8, where row(r) and to(c) are pointers.
template <class Row, class To>
inline void transpose_8x8(const Row& row, const To& to) {
  if constexpr (sizeof(*to(0)) == 4) {
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
      low_pairs(pairs[0], pairs[2]).store(to(h));
      high_pairs(pairs[0], pairs[2]).store(to(h + 1));
      low_pairs(pairs[1], pairs[3]).store(to(h + 2));
      high_pairs(pairs[1], pairs[3]).store(to(h + 3));
    }
    return;
  }
  for (int r = 0; r < 8; ++r) {
    for (int c = 0; c < 8; ++c) to(c)[r] = row(r)[c];
  }
}

/// target[c * target_stride + r] = row(r)[c]
template <class T, class Row>
inline void transpose_8x8(const Row& row, T* target, std::int64_t target_stride) {
  transpose_8x8(row, [=](int c) { return target + c * target_stride; });
}

}  // namespace moegrad::kernels
