// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/rms_norm.h"

#include "framework/runtime/parallel_for.h"
#include "ops/kernels/rms_norm_rows.h"

namespace moegrad::kernels {
namespace {

// __restrict, because the compiler cannot see that these rows do not overlap.

template <class T>
void add_rows(const T* __restrict a, const T* __restrict b, T* __restrict sum, std::int64_t d) {
  for (std::int64_t i = 0; i < d; ++i) sum[i] = a[i] + b[i];
}

template <class T>
void scale_row(const T* __restrict x, T scale, const T* __restrict w, T* __restrict y,
               std::int64_t d) {
  for (std::int64_t i = 0; i < d; ++i) y[i] = x[i] * scale * w[i];
}

template <class T>
void add_grad_w(const T* __restrict grad_y, const T* __restrict x, T rstd, T* __restrict sum,
                std::int64_t d) {
  for (std::int64_t i = 0; i < d; ++i) sum[i] += grad_y[i] * (x[i] * rstd);
}

template <class T>
void write_grad_x(const T* __restrict grad_sum, const T* __restrict grad_y, const T* __restrict x,
                  const T* __restrict w, T rstd, T* __restrict grad_x, std::int64_t d) {
  for (std::int64_t i = 0; i < d; ++i) grad_x[i] = grad_y[i] * w[i];
  const T along = row_along(grad_x, x, rstd, d);
  if (grad_sum == nullptr) {
    for (std::int64_t i = 0; i < d; ++i) grad_x[i] = (grad_x[i] - x[i] * along) * rstd;
  } else {
    for (std::int64_t i = 0; i < d; ++i) {
      grad_x[i] = grad_sum[i] + (grad_x[i] - x[i] * along) * rstd;
    }
  }
}

}  // namespace

template <class T>
void rms_norm_forward(const T* x, const T* w, T* y, T* rstd, std::int64_t rows, std::int64_t d,
                      T eps) {
  parallel_for(rows, kRmsNormRowsPerPiece, [&](std::int64_t begin, std::int64_t end) {
    for (auto n = begin; n < end; ++n) {
      rstd[n] = row_rstd(x + n * d, d, eps);
      scale_row(x + n * d, rstd[n], w, y + n * d, d);
    }
  });
}

template <class T>
void add_rms_norm_forward(const T* x, const T* residual, const T* w, T* sum, T* y, T* rstd,
                          std::int64_t rows, std::int64_t d, T eps) {
  parallel_for(rows, kRmsNormRowsPerPiece, [&](std::int64_t begin, std::int64_t end) {
    for (auto n = begin; n < end; ++n) {
      add_rows(x + n * d, residual + n * d, sum + n * d, d);
      rstd[n] = row_rstd(sum + n * d, d, eps);
      scale_row(sum + n * d, rstd[n], w, y + n * d, d);
    }
  });
}

template <class T>
void rms_norm_backward(const T* grad_sum, const T* grad_y, const T* x, const T* w, const T* rstd,
                       T* grad_x, T* partial, T* grad_w, std::int64_t tokens, std::int64_t heads,
                       std::int64_t d) {
  for_gradient_rows(partial, grad_w, tokens, heads, d, [&](std::int64_t n, T* sum) {
    const auto at = n * d;
    if (sum != nullptr) add_grad_w(grad_y + at, x + at, rstd[n], sum, d);
    if (grad_x == nullptr) return;
    write_grad_x(grad_sum == nullptr ? nullptr : grad_sum + at, grad_y + at, x + at, w, rstd[n],
                 grad_x + at, d);
  });
}

template void rms_norm_forward<float>(const float*, const float*, float*, float*, std::int64_t,
                                      std::int64_t, float);
template void rms_norm_forward<double>(const double*, const double*, double*, double*, std::int64_t,
                                       std::int64_t, double);
template void add_rms_norm_forward<float>(const float*, const float*, const float*, float*, float*,
                                          float*, std::int64_t, std::int64_t, float);
template void add_rms_norm_forward<double>(const double*, const double*, const double*, double*,
                                           double*, double*, std::int64_t, std::int64_t, double);
template void rms_norm_backward<float>(const float*, const float*, const float*, const float*,
                                       const float*, float*, float*, float*, std::int64_t,
                                       std::int64_t, std::int64_t);
template void rms_norm_backward<double>(const double*, const double*, const double*, const double*,
                                        const double*, double*, double*, double*, std::int64_t,
                                        std::int64_t, std::int64_t);

}  // namespace moegrad::kernels
