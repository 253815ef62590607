// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

/// The gated activation between an expert's two projections, times a weight for each row:
///
///     y[r, i] = weights[r] * silu(gate_up[r, i]) * gate_up[r, I + i],   silu(x) = x / (1 + e^-x)
///
/// gate_up: [R, 2I], gate in the first I columns, up in the last.   weights: [R], by default ones.
/// y: [R, I]
///
/// Applying the weights here means that the linear projection's results need not be kept for the
/// gradient of the weights. gate_up and y may be bfloat16: the weights and the arithmetic are
/// float32 then, and y is rounded once.
///
/// Errors: ShapeError for an odd number of columns and for weights that are not [R], DtypeError for
/// other mixed dtypes.
/// Reference: Shazeer, "GLU variants improve transformer", 2020, https://arxiv.org/abs/2002.05202
Tensor swiglu(const Tensor& gate_up, const Tensor& weights = {});

}  // namespace moegrad::ops
