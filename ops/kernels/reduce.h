// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moegrad::kernels {

/// y[o, i] = sum over k of x[o, k, i],  x [outer, n, inner], in T by halving (Note [Sums by
/// halving]). Overwrites y.
template <class T>
void sum_columns(const T* x, T* y, std::int64_t outer, std::int64_t n, std::int64_t inner);

/// y[o] = sum over k of x[o, k],  x [outer, n], by halved_row_sum.
template <class T>
void sum_rows(const T* x, T* y, std::int64_t outer, std::int64_t n);

/// y[o, k, i] = sum over j <= k of x[o, j, i], or over j >= k if `reverse`, in double; x, y [outer,
/// n, inner].
template <class T>
void cumsum(const T* x, bool reverse, T* y, std::int64_t outer, std::int64_t n, std::int64_t inner);

}  // namespace moegrad::kernels
