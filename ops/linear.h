// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

/// y = x W^T,   x: [..., in]   weight: [out, in]   y: [..., out]
///
/// The weight has PyTorch's orientation; it is transposed while it is packed into panels, never as
/// a whole. It may be FRACTAL_NZ. y is rounded once where the operands are bfloat16 (Note [bfloat16
/// products]), and the weight's gradient is float32. Each element of y is one sum over `in` (Note
/// [Matmul order]). The weight's gradient is one such sum over all rows, or with `gradient_rows`,
/// one over each run of that many rows, which are added in order: linear_cross_entropy has the bits
/// of linear and cross_entropy with kLinearCrossEntropyRows.
///
/// With `dtype` float32, y is float32 where the weight is bfloat16, and what is rounded is its
/// gradient. Beside a float32 weight x may then be bfloat16, which is widened.
///
/// ShapeError if ranks or sizes do not fit, DtypeError unless both are float32, both float64 or
/// both bfloat16, LayoutError for FRACTAL_NZ blocks of another shape, ValueError for gradient_rows
/// below 0.
Tensor linear(const Tensor& x, const Tensor& weight, std::int64_t gradient_rows = 0,
              std::optional<Dtype> dtype = std::nullopt);

}  // namespace moegrad::ops
