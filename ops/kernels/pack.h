// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ops/kernels/even_cuts.h"

namespace moegrad::kernels {

/// How the right operand B [k, n] of a product is stored. `stride` is in elements, `rows` counts
/// the rows of one 16-column panel, padding included (Note [FRACTAL_NZ]):
enum class RightForm : std::uint8_t {
  kRows,          // B[p, j] = data[p * stride + j]
  kColumns,       // B[p, j] = data[j * stride + p]
  kNz,            // B[p, j] = data[(j / 16 * rows + p) * 16 + j % 16]
  kNzTransposed,  // B[p, j] = data[(p / 16 * rows + j) * 16 + p % 16]
};

/// Whether products read B in place. NZ consists of panels already, or is read as the left operand
/// (Note [Transposed product]). The other forms are packed into panels first.
constexpr bool is_read_in_place(RightForm form) {
  return form == RightForm::kNz || form == RightForm::kNzTransposed;
}

template <class T>
struct RightOperand {
  const T* data = nullptr;
  RightForm form = RightForm::kRows;
  std::int64_t stride = 0;  // `rows` for the two NZ forms
};

/// Writes B[k0 : k0 + k, j0 : j_end] to consecutive panels [k, 16], in the order in which B is
/// stored. Columns past n become zero. j0 and k0 are multiples of 16. Not for forms that are read
/// in place.
template <class T>
void pack_right_panels(const RightOperand<T>& b, std::int64_t k0, std::int64_t k, std::int64_t j0,
                       std::int64_t j_end, std::int64_t n, T* panels);

/// Writes strip s of A [rows, k] to [k, strip_rows] at target + s * strip_size. Element (i, p) of A
/// is a[i * row_stride + p * k_stride]; one of the strides is 1. strip_rows is 2, 6 or 8. In a
/// strip of fewer rows the rest is undefined.
template <class T>
void pack_left_strips(const T* a, std::int64_t row_stride, std::int64_t k_stride,
                      const EvenCuts& strips, std::int64_t strip_rows, std::int64_t k,
                      std::int64_t strip_size, T* target);

}  // namespace moegrad::kernels
