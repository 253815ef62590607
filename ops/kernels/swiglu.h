// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moegrad::kernels {

// A null `weights` [rows] means ones. T = ArithmeticOf<S>.

/// y[r, i] = weights[r] * silu(gate[r, i]) * up[r, i]; a row of gate_up [rows, 2 * inner] is gate,
/// then up.
template <class S, class T>
void swiglu(const S* gate_up, const T* weights, S* y, std::int64_t rows, std::int64_t inner);

/// Overwrites dgate_up [rows, 2 * inner] and, unless it is null, dweights [rows].
template <class S, class T>
void swiglu_backward(const S* dy, const S* gate_up, const T* weights, S* dgate_up, T* dweights,
                     std::int64_t rows, std::int64_t inner);

}  // namespace moegrad::kernels
