// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moegrad::kernels {

/// y[r, i] = gelu(x[r, i] + bias[i]),  x, y [rows, d]
template <class T>
void bias_gelu(const T* x, const T* bias, T* y, std::int64_t rows, std::int64_t d);

/// dx[r, i] = dy[r, i] gelu'(x[r, i] + bias[i])
template <class T>
void bias_gelu_backward(const T* dy, const T* x, const T* bias, T* dx, std::int64_t rows,
                        std::int64_t d);

/// y[r, i] = silu(a) * u with a = x[r, i] + bias[i], u = x[r, inner + i] + bias[inner + i];
/// x [rows, 2 inner], y [rows, inner]
template <class T>
void bias_swiglu(const T* x, const T* bias, T* y, std::int64_t rows, std::int64_t inner);

/// dx [rows, 2 inner] of it.
template <class T>
void bias_swiglu_backward(const T* dy, const T* x, const T* bias, T* dx, std::int64_t rows,
                          std::int64_t inner);

}  // namespace moegrad::kernels
