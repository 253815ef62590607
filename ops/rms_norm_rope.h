// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/tensor/tensor.h"
#include "ops/rope.h"

namespace moegrad::ops {

/// The norm of each query or key head and its rotation, in one pass and one buffer:
///
///     y = rope(rms_norm(x, weight, eps), table)       x, y [T, N, D]; weight [D]; table [T, D/2]
///
/// The same bits as ops::rms_norm and ops::rope in float32 and float64, gradients included.
///
/// x and y may be bfloat16: all else is float32 then, and y is rounded once, not after the norm.
///
/// Errors: ShapeError unless x is [T, N, D] with an even D of at least 2, weight [D] and the table
/// [T, D/2], DtypeError for other mixed dtypes.
Tensor rms_norm_rope(const Tensor& x, const Tensor& weight, const RopeTable& table,
                     double eps = 1e-6);

}  // namespace moegrad::ops
