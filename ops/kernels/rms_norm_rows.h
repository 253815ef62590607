// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "framework/runtime/parallel_for.h"
#include "ops/kernels/row_reduce.h"

namespace moegrad::kernels {

// The operations on a row of d elements that rms_norm shares with the kernels that it is fused
// into. The order of operations is the same in all of them.

inline constexpr std::int64_t kRmsNormRowsPerPiece = 64;

/// 1 / sqrt(mean(x^2) + eps)
template <class T>
T row_rstd(const T* x, std::int64_t d, T eps) {
  return T(1) / std::sqrt(row_dot(x, x, d) / static_cast<T>(d) + eps);
}

/// With gw = grad_y * w: the gradient of x is rstd * (gw - x * along).
template <class T>
T row_along(const T* gw, const T* x, T rstd, std::int64_t d) {
  return row_dot(gw, x, d) / static_cast<T>(d) * rstd * rstd;
}

/// Calls row(n, sum) for each row. The row adds its part of the weight's gradient to sum [d], which
/// belongs to the row's piece in partial [rms_norm_pieces(rows), d]. Then overwrites grad_w [d]
/// with the sum over the pieces in ascending order. If partial is null, sum is null and grad_w is
/// unused.
template <class T, class Row>
void for_gradient_rows(T* partial, T* grad_w, std::int64_t rows, std::int64_t d, const Row& row) {
  parallel_for(rows, kRmsNormRowsPerPiece, [&](std::int64_t begin, std::int64_t end) {
    T* const sum = partial == nullptr ? nullptr : partial + begin / kRmsNormRowsPerPiece * d;
    if (sum != nullptr) std::fill_n(sum, d, T(0));
    for (auto n = begin; n < end; ++n) row(n, sum);
  });
  if (partial == nullptr) return;
  std::fill_n(grad_w, d, T(0));
  for (const T* sum = partial; rows > 0; rows -= kRmsNormRowsPerPiece, sum += d) {
    for (std::int64_t i = 0; i < d; ++i) grad_w[i] += sum[i];
  }
}

}  // namespace moegrad::kernels
