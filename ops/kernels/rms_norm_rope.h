// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moegrad::kernels {

// Rows are [tokens * heads, dim]; the rows of one token are next to each other. cos and sin are
// [tokens, dim / 2]. S are the elements of rows, T = ArithmeticOf<S> those of all else.

/// rms_norm_forward, and rope_rotate of its result, in one pass.
template <class S, class T>
void rms_norm_rope_forward(const S* x, const T* w, const T* cos, const T* sin, S* y, T* rstd,
                           std::int64_t tokens, std::int64_t heads, std::int64_t dim, T eps);

/// rms_norm_backward (ops/kernels/rms_norm.h) of grad_y rotated back, in one pass. grad_x, or
/// partial and grad_w, are null if they are not wanted.
template <class S, class T>
void rms_norm_rope_backward(const S* grad_y, const S* x, const T* w, const T* cos, const T* sin,
                            const T* rstd, S* grad_x, T* partial, T* grad_w, std::int64_t tokens,
                            std::int64_t heads, std::int64_t dim);

}  // namespace moegrad::kernels
