// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/rms_norm.h"

#include <algorithm>
#include <cmath>

#include "framework/runtime/parallel_for.h"
#include "ops/kernels/row_reduce.h"

namespace moegrad::kernels {
namespace {

constexpr std::int64_t kRowsPerPiece = 64;

}  // namespace

template <class T>
void rms_norm_forward(const T* x, const T* w, T* y, T* rstd, std::int64_t rows, std::int64_t d,
                      T eps) {
  parallel_for(rows, kRowsPerPiece, [&](std::int64_t begin, std::int64_t end) {
    for (auto n = begin; n < end; ++n) {
      const T* row = x + n * d;
      const T scale = T(1) / std::sqrt(row_dot(row, row, d) / static_cast<T>(d) + eps);
      rstd[n] = scale;
      for (std::int64_t i = 0; i < d; ++i) y[n * d + i] = row[i] * scale * w[i];
    }
  });
}

template <class T>
void rms_norm_grad_x(const T* grad_y, const T* x, const T* w, const T* rstd, T* grad_x,
                     std::int64_t rows, std::int64_t d) {
  parallel_for(rows, kRowsPerPiece, [&](std::int64_t begin, std::int64_t end) {
    for (auto n = begin; n < end; ++n) {
      const T* row = x + n * d;
      T* target = grad_x + n * d;
      for (std::int64_t i = 0; i < d; ++i) target[i] = grad_y[n * d + i] * w[i];
      const T along = row_dot(target, row, d) / static_cast<T>(d) * rstd[n] * rstd[n];
      for (std::int64_t i = 0; i < d; ++i) target[i] = (target[i] - row[i] * along) * rstd[n];
    }
  });
}

std::int64_t rms_norm_pieces(std::int64_t rows) {
  return (rows + kRowsPerPiece - 1) / kRowsPerPiece;
}

template <class T>
void rms_norm_grad_weight(const T* grad_y, const T* x, const T* rstd, T* partial, T* grad_w,
                          std::int64_t rows, std::int64_t d) {
  parallel_for(rows, kRowsPerPiece, [&](std::int64_t begin, std::int64_t end) {
    T* sum = partial + begin / kRowsPerPiece * d;
    std::fill_n(sum, d, T(0));
    for (auto n = begin; n < end; ++n) {
      for (std::int64_t i = 0; i < d; ++i) sum[i] += grad_y[n * d + i] * (x[n * d + i] * rstd[n]);
    }
  });
  std::fill_n(grad_w, d, T(0));
  for (std::int64_t piece = 0; piece < rms_norm_pieces(rows); ++piece) {
    for (std::int64_t i = 0; i < d; ++i) grad_w[i] += partial[piece * d + i];
  }
}

template void rms_norm_forward<float>(const float*, const float*, float*, float*, std::int64_t,
                                      std::int64_t, float);
template void rms_norm_forward<double>(const double*, const double*, double*, double*, std::int64_t,
                                       std::int64_t, double);
template void rms_norm_grad_x<float>(const float*, const float*, const float*, const float*, float*,
                                     std::int64_t, std::int64_t);
template void rms_norm_grad_x<double>(const double*, const double*, const double*, const double*,
                                      double*, std::int64_t, std::int64_t);
template void rms_norm_grad_weight<float>(const float*, const float*, const float*, float*, float*,
                                          std::int64_t, std::int64_t);
template void rms_norm_grad_weight<double>(const double*, const double*, const double*, double*,
                                           double*, std::int64_t, std::int64_t);

}  // namespace moegrad::kernels
