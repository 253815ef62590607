// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

// A bias and an activation in one pass. Backward computes the sums again instead of keeping them.
// ShapeError for sizes that do not fit, DtypeError unless both are float32 or both are float64.

/// y = gelu(x + bias),  with the erf;  x, y: [..., D]   bias: [D]
Tensor bias_gelu(const Tensor& x, const Tensor& bias);

/// y = silu(a + b_a) * (u + b_u),  where gate_up = [a | u] and bias = [b_a | b_u];
/// gate_up: [..., 2I]   bias: [2I]   y: [..., I]
Tensor bias_swiglu(const Tensor& gate_up, const Tensor& bias);

}  // namespace moegrad::ops
