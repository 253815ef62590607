// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/rms_norm.h"

#include "framework/runtime/parallel_for.h"
#include "framework/tensor/dtype.h"
#include "ops/kernels/rms_norm_rows.h"
#include "ops/kernels/write_row.h"

namespace moegrad::kernels {
namespace {

// __restrict, because the compiler cannot see that these rows do not overlap.

template <class X, class T>
void add_rows(const X* __restrict a, const T* __restrict b, T* __restrict sum, std::int64_t d) {
  for (std::int64_t i = 0; i < d; ++i) sum[i] = T(a[i]) + b[i];
}

template <class X, class Y, class T>
void scale_row(const X* __restrict x, T scale, const T* __restrict w, Y* __restrict y,
               std::int64_t d) {
  write_row(y, d, [=](std::int64_t i) { return T(x[i]) * scale * w[i]; });
}

}  // namespace

template <class X, class Y, class T>
void rms_norm_forward(const X* x, const T* w, Y* y, T* rstd, std::int64_t rows, std::int64_t d,
                      T eps) {
  parallel_for(rows, kRmsNormRowsPerPiece, [&](std::int64_t begin, std::int64_t end) {
    for (auto n = begin; n < end; ++n) {
      rstd[n] = row_rstd(x + n * d, d, eps);
      scale_row(x + n * d, rstd[n], w, y + n * d, d);
    }
  });
}

template <class X, class Y, class T>
void add_rms_norm_forward(const X* x, const T* residual, const T* w, T* sum, Y* y, T* rstd,
                          std::int64_t rows, std::int64_t d, T eps) {
  parallel_for(rows, kRmsNormRowsPerPiece, [&](std::int64_t begin, std::int64_t end) {
    for (auto n = begin; n < end; ++n) {
      add_rows(x + n * d, residual + n * d, sum + n * d, d);
      rstd[n] = row_rstd(sum + n * d, d, eps);
      scale_row(sum + n * d, rstd[n], w, y + n * d, d);
    }
  });
}

template <class X, class Y, class T>
void rms_norm_backward(const T* grad_sum, const Y* grad_y, const X* x, const T* w, const T* rstd,
                       X* grad_x, T* partial, T* grad_w, std::int64_t tokens, std::int64_t heads,
                       std::int64_t d) {
  for_gradient_rows(partial, grad_w, tokens, heads, d, [&](std::int64_t n, T* sum) {
    const auto at = n * d;
    row_backward(grad_sum == nullptr ? nullptr : grad_sum + at, grad_y + at, x + at, w, rstd[n],
                 grad_x == nullptr ? nullptr : grad_x + at, sum, d);
  });
}

template void rms_norm_forward(const float*, const float*, float*, float*, std::int64_t,
                               std::int64_t, float);
template void add_rms_norm_forward(const float*, const float*, const float*, float*, float*, float*,
                                   std::int64_t, std::int64_t, float);
template void rms_norm_backward(const float*, const float*, const float*, const float*,
                                const float*, float*, float*, float*, std::int64_t, std::int64_t,
                                std::int64_t);
template void rms_norm_forward(const double*, const double*, double*, double*, std::int64_t,
                               std::int64_t, double);
template void add_rms_norm_forward(const double*, const double*, const double*, double*, double*,
                                   double*, std::int64_t, std::int64_t, double);
template void rms_norm_backward(const double*, const double*, const double*, const double*,
                                const double*, double*, double*, double*, std::int64_t,
                                std::int64_t, std::int64_t);
template void rms_norm_forward(const BFloat16*, const float*, BFloat16*, float*, std::int64_t,
                               std::int64_t, float);
template void add_rms_norm_forward(const BFloat16*, const float*, const float*, float*, BFloat16*,
                                   float*, std::int64_t, std::int64_t, float);
template void rms_norm_backward(const float*, const BFloat16*, const BFloat16*, const float*,
                                const float*, BFloat16*, float*, float*, std::int64_t, std::int64_t,
                                std::int64_t);
template void rms_norm_forward(const BFloat16*, const float*, float*, float*, std::int64_t,
                               std::int64_t, float);
template void add_rms_norm_forward(const BFloat16*, const float*, const float*, float*, float*,
                                   float*, std::int64_t, std::int64_t, float);
template void rms_norm_backward(const float*, const float*, const BFloat16*, const float*,
                                const float*, BFloat16*, float*, float*, std::int64_t, std::int64_t,
                                std::int64_t);
template void rms_norm_forward(const float*, const float*, BFloat16*, float*, std::int64_t,
                               std::int64_t, float);
template void add_rms_norm_forward(const float*, const float*, const float*, float*, BFloat16*,
                                   float*, std::int64_t, std::int64_t, float);
template void rms_norm_backward(const float*, const BFloat16*, const float*, const float*,
                                const float*, float*, float*, float*, std::int64_t, std::int64_t,
                                std::int64_t);

}  // namespace moegrad::kernels
