// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moegrad::kernels {

/// y[o, i] = sum over k of x[o, k, i],  x [outer, n, inner]. If inner > 1, in ascending k; rows
/// (inner == 1) by row_sum. Overwrites y.
template <class T>
void sum(const T* x, T* y, std::int64_t outer, std::int64_t n, std::int64_t inner);

/// y[o, i] = max over k of x[o, k, i] and where[o, i] the lowest such k; NaN counts as the
/// greatest. n >= 1.
template <class T>
void max(const T* x, T* y, std::int64_t* where, std::int64_t outer, std::int64_t n,
         std::int64_t inner);

/// Overwrites dx [outer, n, inner]: dy[o, i] at k = where[o, i], zero elsewhere.
template <class T>
void max_backward(const T* dy, const std::int64_t* where, T* dx, std::int64_t outer, std::int64_t n,
                  std::int64_t inner);

}  // namespace moegrad::kernels
