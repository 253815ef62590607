// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/pack.h"

#include <algorithm>
#include <cstring>

#include "framework/tensor/layout.h"
#include "ops/kernels/matmul_tile.h"

namespace moegrad::kernels {
namespace {

// target[c, r] = source[r, c] for r, c < 8.
#if defined(__AVX2__) && defined(__FMA__)
void transpose_8x8(const float* source, std::int64_t stride, float* target) {
  __m256 in[8], pairs[8], quads[8];
#pragma GCC unroll 8
  for (int r = 0; r < 8; ++r) in[r] = _mm256_loadu_ps(source + r * stride);
#pragma GCC unroll 4
  for (int r = 0; r < 8; r += 2) {
    pairs[r] = _mm256_unpacklo_ps(in[r], in[r + 1]);
    pairs[r + 1] = _mm256_unpackhi_ps(in[r], in[r + 1]);
  }
#pragma GCC unroll 2
  for (int r = 0; r < 8; r += 4) {
    quads[r] = _mm256_shuffle_ps(pairs[r], pairs[r + 2], 0x44);
    quads[r + 1] = _mm256_shuffle_ps(pairs[r], pairs[r + 2], 0xee);
    quads[r + 2] = _mm256_shuffle_ps(pairs[r + 1], pairs[r + 3], 0x44);
    quads[r + 3] = _mm256_shuffle_ps(pairs[r + 1], pairs[r + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    _mm256_storeu_ps(target + c * kNzBlock, _mm256_permute2f128_ps(quads[c], quads[c + 4], 0x20));
    _mm256_storeu_ps(target + (c + 4) * kNzBlock,
                     _mm256_permute2f128_ps(quads[c], quads[c + 4], 0x31));
  }
}
#endif

template <class T>
void transpose_8x8(const T* source, std::int64_t stride, T* target) {
  for (int r = 0; r < 8; ++r) {
    for (int c = 0; c < 8; ++c) target[c * kNzBlock + r] = source[r * stride + c];
  }
}

// panel[p, j] = source[j * stride + p] for p < k, j < 16.
template <class T>
void transpose_to_panel(const T* source, std::int64_t stride, std::int64_t k, T* panel) {
  const auto whole = k / 8 * 8;
  for (std::int64_t p = 0; p < whole; p += 8) {
    transpose_8x8(source + p, stride, panel + p * kNzBlock);
    transpose_8x8(source + 8 * stride + p, stride, panel + p * kNzBlock + 8);
  }
  for (std::int64_t p = whole; p < k; ++p) {
    for (std::int64_t j = 0; j < kNzBlock; ++j) panel[p * kNzBlock + j] = source[j * stride + p];
  }
}

}  // namespace

template <class T>
void pack_right_panel(const RightOperand<T>& b, std::int64_t k0, std::int64_t k, std::int64_t j0,
                      std::int64_t n, T* panel) {
  const auto columns = std::min(kNzBlock, n - j0);
  if (b.form == RightForm::kNzTransposed) {
    // Rows past the stored matrix are zero padding, so no column needs care.
    for (std::int64_t p = 0; p < k; p += kNzBlock) {
      const T* block = b.data + ((k0 + p) / kNzBlock * b.stride + j0) * kNzBlock;
      // The next tile stands a whole panel away, out of the hardware prefetcher's sight.
      const T* next = block + b.stride * kNzBlock;
      for (std::int64_t line = 0; line < kNzBlock; ++line) {
        __builtin_prefetch(next + line * kNzBlock);
      }
      transpose_to_panel(block, kNzBlock, std::min(kNzBlock, k - p), panel + p * kNzBlock);
    }
  } else if (columns < kNzBlock) {
    const bool by_rows = b.form == RightForm::kRows;
    const auto k_step = by_rows ? b.stride : 1;
    const auto j_step = by_rows ? 1 : b.stride;
    for (std::int64_t p = 0; p < k; ++p) {
      const T* row = b.data + (k0 + p) * k_step + j0 * j_step;
      for (std::int64_t j = 0; j < kNzBlock; ++j) {
        panel[p * kNzBlock + j] = j < columns ? row[j * j_step] : T(0);
      }
    }
  } else if (b.form == RightForm::kColumns) {
    transpose_to_panel(b.data + j0 * b.stride + k0, b.stride, k, panel);
  } else {
    for (std::int64_t p = 0; p < k; ++p) {
      __builtin_prefetch(b.data + (k0 + p + 16) * b.stride + j0);
      std::memcpy(panel + p * kNzBlock, b.data + (k0 + p) * b.stride + j0, sizeof(T) * kNzBlock);
    }
  }
}

template <class T>
void pack_left_strip(const T* a, std::int64_t k_stride, std::int64_t rows, std::int64_t k,
                     T* strip) {
  if (rows == kTileRows<T>) {
    for (std::int64_t p = 0; p < k; ++p) {
      std::memcpy(strip + p * kTileRows<T>, a + p * k_stride, sizeof(T) * kTileRows<T>);
    }
  } else {
    for (std::int64_t p = 0; p < k; ++p) {
      std::copy_n(a + p * k_stride, rows, strip + p * kTileRows<T>);
    }
  }
}

template void pack_right_panel<float>(const RightOperand<float>&, std::int64_t, std::int64_t,
                                      std::int64_t, std::int64_t, float*);
template void pack_right_panel<double>(const RightOperand<double>&, std::int64_t, std::int64_t,
                                       std::int64_t, std::int64_t, double*);
template void pack_left_strip<float>(const float*, std::int64_t, std::int64_t, std::int64_t,
                                     float*);
template void pack_left_strip<double>(const double*, std::int64_t, std::int64_t, std::int64_t,
                                      double*);

}  // namespace moegrad::kernels
