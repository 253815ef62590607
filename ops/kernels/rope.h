// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moegrad::kernels {

/// y[t, n, :] = x[t, n, :] with each pair (i, i + dim/2) rotated by the angle of cos, sin [t, i];
/// direction is 1, or -1 for the inverse. T = ArithmeticOf<S>.
template <class S, class T>
void rope_rotate(const S* x, const T* cos, const T* sin, T direction, S* y, std::int64_t tokens,
                 std::int64_t heads, std::int64_t dim);

}  // namespace moegrad::kernels
