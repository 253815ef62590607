// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moegrad::kernels {

/// y[r, i] = silu(gate[r, i]) * up[r, i]; a row of gate_up [rows, 2 * inner] is gate, then up.
template <class T>
void swiglu(const T* gate_up, T* y, std::int64_t rows, std::int64_t inner);

/// Overwrites dgate_up [rows, 2 * inner].
template <class T>
void swiglu_backward(const T* dy, const T* gate_up, T* dgate_up, std::int64_t rows,
                     std::int64_t inner);

}  // namespace moegrad::kernels
