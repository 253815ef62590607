// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ops/kernels/simd.h"

namespace moegrad::kernels {

/// target[c * target_stride + r] = row(r)[c] for r, c < 8, where row(r) is a pointer.
template <class T, class Row>
inline void transpose_8x8(const Row& row, T* target, std::int64_t target_stride) {
#if defined(__AVX2__) && defined(__FMA__)
  if constexpr (sizeof(T) == 4) {
    // in[h + r] holds columns h ... h + 3 of rows r and r + 4, for h = 0, 4.
    __m256 in[8], pairs[4];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      const auto half = [&](int r) { return _mm_loadu_ps(row(r) + i / 4 * 4); };
      in[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(half(i % 4)), half(i % 4 + 4), 1);
    }
#pragma GCC unroll 2
    for (int h = 0; h < 8; h += 4) {
      pairs[0] = _mm256_unpacklo_ps(in[h], in[h + 1]);
      pairs[1] = _mm256_unpackhi_ps(in[h], in[h + 1]);
      pairs[2] = _mm256_unpacklo_ps(in[h + 2], in[h + 3]);
      pairs[3] = _mm256_unpackhi_ps(in[h + 2], in[h + 3]);
      float* const to = target + h * target_stride;
      _mm256_storeu_ps(to, _mm256_shuffle_ps(pairs[0], pairs[2], 0x44));
      _mm256_storeu_ps(to + target_stride, _mm256_shuffle_ps(pairs[0], pairs[2], 0xee));
      _mm256_storeu_ps(to + 2 * target_stride, _mm256_shuffle_ps(pairs[1], pairs[3], 0x44));
      _mm256_storeu_ps(to + 3 * target_stride, _mm256_shuffle_ps(pairs[1], pairs[3], 0xee));
    }
    return;
  }
#endif
  for (int r = 0; r < 8; ++r) {
    for (int c = 0; c < 8; ++c) target[c * target_stride + r] = row(r)[c];
  }
}

}  // namespace moegrad::kernels
