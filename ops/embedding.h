// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

/// Row look-up:  y[..., :] = weight[ids[...], :]     ids: int64 [...]   weight: [V, H]   y: [...,
/// H]
///
/// The weight is float32, float64 or bfloat16, and y as the weight. The gradient of a row adds the
/// tokens that used it, by halving over all positions (Note [Sums by halving]); that of a bfloat16
/// weight is float32. An id outside [0, V) is a ValueError, a weight that is not a matrix a
/// ShapeError, other dtypes a DtypeError.
Tensor embedding(const Tensor& ids, const Tensor& weight);

}  // namespace moegrad::ops
