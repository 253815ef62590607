// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moegrad::kernels {

/// y[n, :] = x[n, :] * rstd[n] * w,  with rstd[n] = 1 / sqrt(mean(x[n, :]^2) + eps).
template <class T>
void rms_norm_forward(const T* x, const T* w, T* y, T* rstd, std::int64_t rows, std::int64_t d,
                      T eps);

/// Overwrites grad_x [rows, d] with rstd * (grad_y*w - x * rstd^2 * <grad_y*w, x> / d).
template <class T>
void rms_norm_grad_x(const T* grad_y, const T* x, const T* w, const T* rstd, T* grad_x,
                     std::int64_t rows, std::int64_t d);

/// Pieces of 64 rows into which the sum of rms_norm_grad_weight is cut.
std::int64_t rms_norm_pieces(std::int64_t rows);

/// Overwrites grad_w [d] with sum_n grad_y[n, :] * x[n, :] * rstd[n]: first within each piece, to
/// partial [rms_norm_pieces(rows), d], then over the pieces in ascending order.
template <class T>
void rms_norm_grad_weight(const T* grad_y, const T* x, const T* rstd, T* partial, T* grad_w,
                          std::int64_t rows, std::int64_t d);

}  // namespace moegrad::kernels
