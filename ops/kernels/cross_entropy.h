// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moegrad::kernels {

/// The loss of a token t with the target y, and its gradient for the logit v, where p = softmax(x):
///
///     w[t] (lse - a x[t, y] - b sum over v of x[t, v] + c lse^2)
///     w[t] (p[v] (1 + 2 c lse) - a [v = y] - b)
///
/// With e of label smoothing a = 1 - e and b = e / V, for all V classes.
template <class T>
struct TokenLoss {
  T of_target = 1;             // a
  T of_class = 0;              // b
  T z_coef = 0;                // c
  const T* weights = nullptr;  // w [n]; null: 1
};

/// lse[t] = log sum_v exp(x[t, v]) and the loss of each token; both are 0 if targets[t] is
/// `ignore_index`. x [n, v].
template <class T>
void cross_entropy(const T* x, const std::int64_t* targets, std::int64_t ignore_index,
                   const TokenLoss<T>& kind, T* loss, T* lse, std::int64_t n, std::int64_t v);

// The same where ranks divide the classes, and x has those from `first` on: each call is for this
// rank's part, and between the calls the ranks join what they have found, by the maximum and the
// sum. Bits are those of cross_entropy() where the parts are subtrees (Note [Sums by halving]).

/// largest[t] = max over v of x[t, v]; -inf for an ignored row.
template <class T>
void cross_entropy_largest(const T* x, const std::int64_t* targets, std::int64_t ignore_index,
                           T* largest, std::int64_t n, std::int64_t v);
/// sums[t] = sum over v of exp(x[t, v] - largest[t]), sums[n + t] = x[t, targets[t] - first], or
/// -0 where this rank does not have the target, and if `of_all`, sums[2 n + t] = sum over v of
/// (x[t, v] - largest[t]). A largest of -inf counts as 0.
template <class T>
void cross_entropy_sums(const T* x, const std::int64_t* targets, std::int64_t ignore_index,
                        const T* largest, bool of_all, double* sums, std::int64_t n, std::int64_t v,
                        std::int64_t first);
/// loss and lse from what the ranks have found.
template <class T>
void cross_entropy_join(const T* largest, const double* sums, const std::int64_t* targets,
                        std::int64_t ignore_index, const TokenLoss<T>& kind, T* loss, T* lse,
                        std::int64_t n);

/// Overwrites dx[t, :] = scale * the gradient, where the target is targets[t] - first; zero for
/// ignored rows. Out is T, whose dx may be x, or BFloat16, to which results are rounded.
template <class T, class Out>
void cross_entropy_backward(T scale, const T* x, const std::int64_t* targets,
                            std::int64_t ignore_index, const TokenLoss<T>& kind, const T* lse,
                            Out* dx, std::int64_t n, std::int64_t v, std::int64_t first = 0);

}  // namespace moegrad::kernels
