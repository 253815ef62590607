// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/rms_norm_rope.h"

#include <iterator>
#include <vector>

#include "framework/runtime/parallel_for.h"
#include "framework/tensor/dtype.h"
#include "ops/kernels/rms_norm_rows.h"
#include "ops/kernels/rotate_pair.h"

namespace moegrad::kernels {
namespace {

// __restrict, because the compiler cannot see that these rows do not overlap.

template <class S, class T>
void scale_and_rotate(const S* __restrict x, T scale, const T* __restrict w,
                      const T* __restrict cos, const T* __restrict sin, S* __restrict y,
                      std::int64_t half) {
  for (std::int64_t i = 0; i < half; ++i) {
    const auto turned =
        rotate_pair(T(x[i]) * scale * w[i], T(x[i + half]) * scale * w[i + half], cos[i], sin[i]);
    y[i] = S(turned.first);
    y[i + half] = S(turned.second);
  }
}

template <class S, class T>
void rotate_back(const S* __restrict grad_y, const T* __restrict cos, const T* __restrict sin,
                 T* __restrict grad, std::int64_t half) {
  for (std::int64_t i = 0; i < half; ++i) {
    const auto turned = rotate_pair(T(grad_y[i]), T(grad_y[i + half]), cos[i], -sin[i]);
    grad[i] = turned.first;
    grad[i + half] = turned.second;
  }
}

constexpr std::int64_t kShortRow = 256;

// Room for a longer one, of the calling thread; it grows to the longest and is kept.
template <class T>
T* row_scratch(std::int64_t n) {
  thread_local std::vector<T> row;
  if (std::ssize(row) < n) row.resize(static_cast<std::size_t>(n));
  return row.data();
}

}  // namespace

template <class S, class T>
void rms_norm_rope_forward(const S* x, const T* w, const T* cos, const T* sin, S* y, T* rstd,
                           std::int64_t tokens, std::int64_t heads, std::int64_t dim, T eps) {
  const auto half = dim / 2;
  parallel_for(tokens * heads, kRmsNormRowsPerPiece, [&](std::int64_t begin, std::int64_t end) {
    // Heads are short: the sums of several are under way at once, and the rows stay in the cache.
    for (auto n = begin; n < end; ++n) rstd[n] = row_rstd(x + n * dim, dim, eps);
    for (auto n = begin; n < end; ++n) {
      const auto angles = n / heads * half;
      scale_and_rotate(x + n * dim, rstd[n], w, cos + angles, sin + angles, y + n * dim, half);
    }
  });
}

template <class S, class T>
void rms_norm_rope_backward(const S* grad_y, const S* x, const T* w, const T* cos, const T* sin,
                            const T* rstd, S* grad_x, T* partial, T* grad_w, std::int64_t tokens,
                            std::int64_t heads, std::int64_t dim) {
  const auto half = dim / 2;
  for_gradient_rows(partial, grad_w, tokens, heads, dim, [&](std::int64_t n, T* sum) {
    const auto at = n * dim;
    const T *c = cos + n / heads * half, *s = sin + n / heads * half;
    T short_row[kShortRow];
    T* const grad = dim <= kShortRow ? short_row : row_scratch<T>(dim);
    rotate_back(grad_y + at, c, s, grad, half);
    row_backward<S, T, T>(nullptr, grad, x + at, w, rstd[n],
                          grad_x == nullptr ? nullptr : grad_x + at, sum, dim);
  });
}

template void rms_norm_rope_forward(const float*, const float*, const float*, const float*, float*,
                                    float*, std::int64_t, std::int64_t, std::int64_t, float);
template void rms_norm_rope_backward(const float*, const float*, const float*, const float*,
                                     const float*, const float*, float*, float*, float*,
                                     std::int64_t, std::int64_t, std::int64_t);
template void rms_norm_rope_forward(const double*, const double*, const double*, const double*,
                                    double*, double*, std::int64_t, std::int64_t, std::int64_t,
                                    double);
template void rms_norm_rope_backward(const double*, const double*, const double*, const double*,
                                     const double*, const double*, double*, double*, double*,
                                     std::int64_t, std::int64_t, std::int64_t);
template void rms_norm_rope_forward(const BFloat16*, const float*, const float*, const float*,
                                    BFloat16*, float*, std::int64_t, std::int64_t, std::int64_t,
                                    float);
template void rms_norm_rope_backward(const BFloat16*, const BFloat16*, const float*, const float*,
                                     const float*, const float*, BFloat16*, float*, float*,
                                     std::int64_t, std::int64_t, std::int64_t);

}  // namespace moegrad::kernels
