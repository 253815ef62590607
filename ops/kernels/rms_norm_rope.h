// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moegrad::kernels {

// Rows are [tokens * heads, dim]; the rows of one token are next to each other. cos and sin are
// [tokens, dim / 2].

/// rms_norm_forward, and rope_rotate of its result, in one pass.
template <class T>
void rms_norm_rope_forward(const T* x, const T* w, const T* cos, const T* sin, T* y, T* rstd,
                           std::int64_t tokens, std::int64_t heads, std::int64_t dim, T eps);

/// rms_norm_backward (ops/kernels/rms_norm.h) of grad_y rotated back, in one pass. grad_x, or
/// partial and grad_w, are null if they are not wanted.
template <class T>
void rms_norm_rope_backward(const T* grad_y, const T* x, const T* w, const T* cos, const T* sin,
                            const T* rstd, T* grad_x, T* partial, T* grad_w, std::int64_t tokens,
                            std::int64_t heads, std::int64_t dim);

}  // namespace moegrad::kernels
