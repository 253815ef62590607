// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moegrad::kernels {

/// lse[t] = log sum_v exp(x[t, v]) and nll[t] = lse[t] - x[t, targets[t]]; both are 0 if targets[t]
/// is `ignore_index`. x [n, v].
template <class T>
void cross_entropy(const T* x, const std::int64_t* targets, std::int64_t ignore_index, T* nll,
                   T* lse, std::int64_t n, std::int64_t v);

/// Overwrites dx[t, :] = scale * (exp(x[t, :] - lse[t]) - [v = targets[t]]); zero for ignored rows.
/// Out is T, whose dx may be x, or BFloat16, to which results are rounded.
template <class T, class Out>
void cross_entropy_backward(T scale, const T* x, const std::int64_t* targets,
                            std::int64_t ignore_index, const T* lse, Out* dx, std::int64_t n,
                            std::int64_t v);

}  // namespace moegrad::kernels
