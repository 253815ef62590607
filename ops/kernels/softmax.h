// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moegrad::kernels {

// Rows x [n, d]. The result of a row depends on that row only.

/// y[r, i] = exp(x[r, i] - m) / sum_j exp(x[r, j] - m),  m = max_j x[r, j].
template <class T>
void softmax(const T* x, T* y, std::int64_t n, std::int64_t d);

/// dx[r, i] = y[r, i] * (dy[r, i] - sum_j dy[r, j] * y[r, j])
template <class T>
void softmax_backward(const T* dy, const T* y, T* dx, std::int64_t n, std::int64_t d);

/// y[r, i] = x[r, i] - log sum_j exp(x[r, j])
template <class T>
void log_softmax(const T* x, T* y, std::int64_t n, std::int64_t d);

/// dx[r, i] = dy[r, i] - exp(y[r, i]) * sum_j dy[r, j]
template <class T>
void log_softmax_backward(const T* dy, const T* y, T* dx, std::int64_t n, std::int64_t d);

}  // namespace moegrad::kernels
