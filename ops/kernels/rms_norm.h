// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moegrad::kernels {

// X and Y are the elements of rows, T = ArithmeticOf<X> those of all else. X and Y are equal, or
// one is BFloat16 and the other float.

/// y[n, :] = x[n, :] * rstd[n] * w,  with rstd[n] = 1 / sqrt(mean(x[n, :]^2) + eps).
template <class X, class Y, class T>
void rms_norm_forward(const X* x, const T* w, Y* y, T* rstd, std::int64_t rows, std::int64_t d,
                      T eps);

/// sum = x + residual [rows, d], and rms_norm_forward of sum, in one pass.
template <class X, class Y, class T>
void add_rms_norm_forward(const X* x, const T* residual, const T* w, T* sum, Y* y, T* rstd,
                          std::int64_t rows, std::int64_t d, T eps);

/// Overwrites, in one pass over the rows of [tokens, heads, d],
///     grad_x with grad_sum + rstd * (grad_y*w - x * rstd^2 * <grad_y*w, x> / d)
///     grad_w [d] with the sum over rows of grad_y * x * rstd, in the order of for_gradient_rows
///         (ops/kernels/rms_norm_rows.h), by way of partial [heads, count_parts(tokens), d]
/// grad_sum is null if nothing is added. grad_x, or partial and grad_w, are null if they are not
/// wanted.
template <class X, class Y, class T>
void rms_norm_backward(const T* grad_sum, const Y* grad_y, const X* x, const T* w, const T* rstd,
                       X* grad_x, T* partial, T* grad_w, std::int64_t tokens, std::int64_t heads,
                       std::int64_t d);

}  // namespace moegrad::kernels
