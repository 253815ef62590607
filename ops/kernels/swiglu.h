// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moegrad::kernels {

// A null `weights` [rows] means ones.

/// y[r, i] = weights[r] * silu(gate[r, i]) * up[r, i]; a row of gate_up [rows, 2 * inner] is gate,
/// then up.
template <class T>
void swiglu(const T* gate_up, const T* weights, T* y, std::int64_t rows, std::int64_t inner);

/// Overwrites dgate_up [rows, 2 * inner] and, unless it is null, dweights [rows].
template <class T>
void swiglu_backward(const T* dy, const T* gate_up, const T* weights, T* dgate_up, T* dweights,
                     std::int64_t rows, std::int64_t inner);

}  // namespace moegrad::kernels
