// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/pack.h"

#include <algorithm>
#include <cstring>

#include "framework/tensor/layout.h"
#include "ops/kernels/simd.h"
#include "ops/kernels/transpose_8x8.h"

namespace moegrad::kernels {
namespace {

// panel[p, j] = source[j * stride + p] for p < k, j < 16.
template <class T>
void transpose_to_panel(const T* source, std::int64_t stride, std::int64_t k, T* panel) {
  const auto whole = k / 8 * 8;
  for (std::int64_t p = 0; p < whole; p += 8) {
    for (int half = 0; half < kNzBlock; half += 8) {
      transpose_8x8([&](int r) { return source + (half + r) * stride + p; },
                    panel + p * kNzBlock + half, kNzBlock);
    }
  }
  for (std::int64_t p = whole; p < k; ++p) {
    for (std::int64_t j = 0; j < kNzBlock; ++j) panel[p * kNzBlock + j] = source[j * stride + p];
  }
}

// strip[p * strip_rows + r] = source[r * stride + p] for r < rows, p < k.
template <class T>
void interleave_rows_one_by_one(const T* source, std::int64_t stride, std::int64_t rows,
                                std::int64_t strip_rows, std::int64_t k, T* strip) {
  for (std::int64_t p = 0; p < k; ++p) {
    for (std::int64_t r = 0; r < rows; ++r) strip[p * strip_rows + r] = source[r * stride + p];
  }
}

// Eight steps of six rows at a time; rows that do not exist repeat the last one.
void interleave_six_rows(const float* source, std::int64_t stride, std::int64_t rows,
                         std::int64_t k, float* strip) {
  const float* row[6];
  for (std::int64_t r = 0; r < 6; ++r) row[r] = source + std::min(r, rows - 1) * stride;
  const auto whole = k / 8 * 8;
  for (std::int64_t p = 0; p < whole; p += 8, strip += 48) {
    Vec<float> in[6], pairs[6];
#pragma GCC unroll 6
    for (int r = 0; r < 6; ++r) in[r] = Vec<float>::load(row[r] + p);
#pragma GCC unroll 3
    for (int r = 0; r < 6; r += 2) {
      pairs[r] = low(in[r], in[r + 1]);
      pairs[r + 1] = high(in[r], in[r + 1]);
    }
    // Half h of `four` holds rows 0 to 3 of step 4 h + c. Pair 2 h + c % 2 of `two` holds rows 4
    // and 5.
    const auto store = [&]<int c>(const Vec<float>& four, const Vec<float>& two) {
      four.store_half<0>(strip + 6 * c);
      two.store_pair<c % 2>(strip + 6 * c + 4);
      four.store_half<1>(strip + 6 * (c + 4));
      two.store_pair<2 + c % 2>(strip + 6 * (c + 4) + 4);
    };
    store.template operator()<0>(low_pairs(pairs[0], pairs[2]), pairs[4]);
    store.template operator()<1>(high_pairs(pairs[0], pairs[2]), pairs[4]);
    store.template operator()<2>(low_pairs(pairs[1], pairs[3]), pairs[5]);
    store.template operator()<3>(high_pairs(pairs[1], pairs[3]), pairs[5]);
  }
  interleave_rows_one_by_one(source + whole, stride, rows, 6, k - whole, strip);
}

template <class T>
void interleave_eight_rows(const T* source, std::int64_t stride, std::int64_t rows, std::int64_t k,
                           T* strip) {
  const auto whole = k / 8 * 8;
  for (std::int64_t p = 0; p < whole; p += 8, strip += 64) {
    transpose_8x8([&](std::int64_t r) { return source + std::min(r, rows - 1) * stride + p; },
                  strip, 8);
  }
  interleave_rows_one_by_one(source + whole, stride, rows, 8, k - whole, strip);
}

template <class T>
void interleave_rows(const T* source, std::int64_t stride, std::int64_t rows,
                     std::int64_t strip_rows, std::int64_t k, T* strip) {
  if constexpr (sizeof(T) == 4) {
    if (strip_rows == 6) return interleave_six_rows(source, stride, rows, k, strip);
  }
  if (strip_rows == 8) return interleave_eight_rows(source, stride, rows, k, strip);
  interleave_rows_one_by_one(source, stride, rows, strip_rows, k, strip);
}

// Copies the rows of one step, which are stored side by side in `from`, to all strips.
template <std::int64_t kStripRows, class T>
void deal_out(const T* from, const EvenCuts& strips, std::int64_t strip_size, T* to) {
  for (std::int64_t s = 0; s < strips.count(); ++s, to += strip_size) {
    const auto rows = strips.length(s);
    if (rows == kStripRows) {
      std::memcpy(to, from, sizeof(T) * kStripRows);
    } else {
      std::copy_n(from, rows, to);
    }
    from += rows;
  }
}

// Copies B[k0 : k0 + k, j0 : j0 + 16] to panel [k, 16].
template <class T>
void pack_right_panel(const RightOperand<T>& b, std::int64_t k0, std::int64_t k, std::int64_t j0,
                      std::int64_t n, T* panel) {
  const auto columns = std::min(kNzBlock, n - j0);
  if (columns < kNzBlock) {
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

}  // namespace

template <class T>
void pack_right_panels(const RightOperand<T>& b, std::int64_t k0, std::int64_t k, std::int64_t j0,
                       std::int64_t j_end, std::int64_t n, T* panels) {
  const auto rows = b.form == RightForm::kColumns ? k : kNzBlock;
  for (std::int64_t p = 0; p < k; p += rows) {
    for (auto j = j0; j < j_end; j += kNzBlock) {
      pack_right_panel(b, k0 + p, std::min(rows, k - p), j, n,
                       panels + (j - j0) * k + p * kNzBlock);
    }
  }
}

template <class T>
void pack_left_strips(const T* a, std::int64_t row_stride, std::int64_t k_stride,
                      const EvenCuts& strips, std::int64_t strip_rows, std::int64_t k,
                      std::int64_t strip_size, T* target) {
  if (k_stride == 1) {
    for (std::int64_t s = 0; s < strips.count(); ++s) {
      interleave_rows(a + strips.begin(s) * row_stride, row_stride, strips.length(s), strip_rows, k,
                      target + s * strip_size);
    }
    return;
  }
  const auto deal = strip_rows == 8   ? &deal_out<8, T>
                    : strip_rows == 6 ? &deal_out<6, T>
                                      : &deal_out<2, T>;
  constexpr std::int64_t kLine = 64 / sizeof(T), kRowsAhead = 8;
  const auto width = strips.begin(strips.count());
  for (std::int64_t p = 0; p < k; ++p) {
    const T* from = a + p * k_stride;
    // Rows are far apart in memory, so the hardware does not predict the next one.
    for (std::int64_t i = 0; i < width; i += kLine) {
      __builtin_prefetch(from + kRowsAhead * k_stride + i);
    }
    deal(from, strips, strip_size, target + p * strip_rows);
  }
}

template void pack_right_panels<float>(const RightOperand<float>&, std::int64_t, std::int64_t,
                                       std::int64_t, std::int64_t, std::int64_t, float*);
template void pack_right_panels<double>(const RightOperand<double>&, std::int64_t, std::int64_t,
                                        std::int64_t, std::int64_t, std::int64_t, double*);
template void pack_left_strips<float>(const float*, std::int64_t, std::int64_t, const EvenCuts&,
                                      std::int64_t, std::int64_t, std::int64_t, float*);
template void pack_left_strips<double>(const double*, std::int64_t, std::int64_t, const EvenCuts&,
                                       std::int64_t, std::int64_t, std::int64_t, double*);

}  // namespace moegrad::kernels
