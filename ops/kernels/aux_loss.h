// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moegrad::kernels {

// Rows x [n, e], p = softmax(x[r, :]). The result of a row depends on that row only. A null `mask`
// [n] means ones. A row of mask zero is not read.

/// y[r] = mask[r] * sum_i load[i] * p_i
template <class T>
void expected_load(const T* x, const T* load, const T* mask, T* y, std::int64_t n, std::int64_t e);

/// dx[r, i] = scale * mask[r] * p_i * (load[i] - sum_j load[j] * p_j)
template <class T>
void expected_load_backward(T scale, const T* x, const T* load, const T* mask, T* dx,
                            std::int64_t n, std::int64_t e);

/// y[r] = -sum_i p_i log p_i, where 0 log 0 is 0
template <class T>
void softmax_entropy(const T* x, T* y, std::int64_t n, std::int64_t e);

/// lse[r] = log sum_i exp(x[r, i])
template <class T>
void logsumexp(const T* x, T* lse, std::int64_t n, std::int64_t e);

/// dx[r, i] = scale * lse[r] * p_i, the gradient of scale / 2 * sum_r lse[r]^2.
template <class T>
void squared_logsumexp_backward(T scale, const T* x, const T* lse, T* dx, std::int64_t n,
                                std::int64_t e);

}  // namespace moegrad::kernels
