// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/rms_norm_rope.h"

#include "framework/runtime/parallel_for.h"
#include "ops/kernels/rms_norm_rows.h"
#include "ops/kernels/rotate_pair.h"

namespace moegrad::kernels {
namespace {

// __restrict, because the compiler cannot see that these rows do not overlap.

template <class T>
void scale_and_rotate(const T* __restrict x, T scale, const T* __restrict w,
                      const T* __restrict cos, const T* __restrict sin, T* __restrict y,
                      std::int64_t half) {
  for (std::int64_t i = 0; i < half; ++i) {
    const auto turned =
        rotate_pair(x[i] * scale * w[i], x[i + half] * scale * w[i + half], cos[i], sin[i]);
    y[i] = turned.first;
    y[i + half] = turned.second;
  }
}

template <class T>
void add_grad_w(const T* __restrict grad_y, const T* __restrict x, const T* __restrict cos,
                const T* __restrict sin, T rstd, T* __restrict sum, std::int64_t half) {
  for (std::int64_t i = 0; i < half; ++i) {
    const auto grad = rotate_pair(grad_y[i], grad_y[i + half], cos[i], -sin[i]);
    sum[i] += grad.first * (x[i] * rstd);
    sum[i + half] += grad.second * (x[i + half] * rstd);
  }
}

template <class T>
void write_grad_x(const T* __restrict grad_y, const T* __restrict x, const T* __restrict w,
                  const T* __restrict cos, const T* __restrict sin, T rstd, T* __restrict grad_x,
                  std::int64_t half) {
  for (std::int64_t i = 0; i < half; ++i) {
    const auto grad = rotate_pair(grad_y[i], grad_y[i + half], cos[i], -sin[i]);
    grad_x[i] = grad.first * w[i];
    grad_x[i + half] = grad.second * w[i + half];
  }
  const T along = row_along(grad_x, x, rstd, 2 * half);
  for (std::int64_t i = 0; i < 2 * half; ++i) grad_x[i] = (grad_x[i] - x[i] * along) * rstd;
}

}  // namespace

template <class T>
void rms_norm_rope_forward(const T* x, const T* w, const T* cos, const T* sin, T* y, T* rstd,
                           std::int64_t tokens, std::int64_t heads, std::int64_t dim, T eps) {
  const auto half = dim / 2;
  parallel_for(tokens * heads, kRmsNormRowsPerPiece, [&](std::int64_t begin, std::int64_t end) {
    for (auto n = begin; n < end; ++n) {
      const auto angles = n / heads * half;
      rstd[n] = row_rstd(x + n * dim, dim, eps);
      scale_and_rotate(x + n * dim, rstd[n], w, cos + angles, sin + angles, y + n * dim, half);
    }
  });
}

template <class T>
void rms_norm_rope_backward(const T* grad_y, const T* x, const T* w, const T* cos, const T* sin,
                            const T* rstd, T* grad_x, T* partial, T* grad_w, std::int64_t tokens,
                            std::int64_t heads, std::int64_t dim) {
  const auto half = dim / 2;
  for_gradient_rows(partial, grad_w, tokens, heads, dim, [&](std::int64_t n, T* sum) {
    const auto at = n * dim;
    const T *c = cos + n / heads * half, *s = sin + n / heads * half;
    if (sum != nullptr) add_grad_w(grad_y + at, x + at, c, s, rstd[n], sum, half);
    if (grad_x != nullptr) {
      write_grad_x(grad_y + at, x + at, w, c, s, rstd[n], grad_x + at, half);
    }
  });
}

template void rms_norm_rope_forward<float>(const float*, const float*, const float*, const float*,
                                           float*, float*, std::int64_t, std::int64_t, std::int64_t,
                                           float);
template void rms_norm_rope_forward<double>(const double*, const double*, const double*,
                                            const double*, double*, double*, std::int64_t,
                                            std::int64_t, std::int64_t, double);
template void rms_norm_rope_backward<float>(const float*, const float*, const float*, const float*,
                                            const float*, const float*, float*, float*, float*,
                                            std::int64_t, std::int64_t, std::int64_t);
template void rms_norm_rope_backward<double>(const double*, const double*, const double*,
                                             const double*, const double*, const double*, double*,
                                             double*, double*, std::int64_t, std::int64_t,
                                             std::int64_t);

}  // namespace moegrad::kernels
