// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

/// The gated activation between an expert's two projections:
///
///     y[r, i] = silu(gate_up[r, i]) * gate_up[r, I + i],   silu(x) = x / (1 + e^-x)
///
/// gate_up: [R, 2I], gate in the first I columns, up in the last.   y: [R, I]
///
/// An odd number of columns is a ShapeError.
/// Reference: Shazeer, "GLU variants improve transformer", 2020, https://arxiv.org/abs/2002.05202
Tensor swiglu(const Tensor& gate_up);

}  // namespace moegrad::ops
