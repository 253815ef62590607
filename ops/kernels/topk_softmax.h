// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moegrad::kernels {

// Rows x [n, e] with k chosen columns each, chosen [n, k]. The result of a row depends on that row
// only.

/// The smallest i < count with x[i] infinite or NaN, `count` if there is none.
template <class T>
std::int64_t first_not_finite(const T* x, std::int64_t count);

/// chosen[r, :] = the columns of the k largest of x[r, :], largest first, equal ones by rising
/// column. 1 <= k <= e.
template <class T>
void topk_rows(const T* x, std::int64_t* chosen, std::int64_t n, std::int64_t e, std::int64_t k);

/// w[r, j] = softmax(x[r, :])[chosen[r, j]]
template <class T>
void softmax_at_chosen(const T* x, const std::int64_t* chosen, T* w, std::int64_t n, std::int64_t e,
                       std::int64_t k);

/// dx[r, i] = p_i * (sum over j with chosen[r, j] = i of dw[r, j]  -  sum_j dw[r, j] * w[r, j]),
/// p = softmax(x[r, :]). Overwrites dx [n, e].
template <class T>
void softmax_at_chosen_backward(const T* dw, const T* w, const T* x, const std::int64_t* chosen,
                                T* dx, std::int64_t n, std::int64_t e, std::int64_t k);

/// w[r, :] = softmax of the k values x[r, chosen[r, j]]. This is the softmax over all columns,
/// divided by its sum over the chosen ones.
template <class T>
void chosen_softmax(const T* x, const std::int64_t* chosen, T* w, std::int64_t n, std::int64_t e,
                    std::int64_t k);

/// dx[r, chosen[r, j]] = w[r, j] * (dw[r, j] - sum_i dw[r, i] * w[r, i]), and zero elsewhere.
/// Overwrites dx [n, e].
template <class T>
void chosen_softmax_backward(const T* dw, const T* w, const std::int64_t* chosen, T* dx,
                             std::int64_t n, std::int64_t e, std::int64_t k);

}  // namespace moegrad::kernels
