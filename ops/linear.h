// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

/// y = x W^T,   x: [..., in]   weight: [out, in]   y: [..., out]
///
/// The weight has PyTorch's orientation; it is transposed while it is packed into panels, never as
/// a whole. Each element of y is one chain of fused multiply-adds (Note [Matmul order]). Rank or
/// sizes that do not fit: ShapeError; other dtypes than one of float32, float64: DtypeError.
Tensor linear(const Tensor& x, const Tensor& weight);

}  // namespace moegrad::ops
