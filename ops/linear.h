// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

/// y = x W^T,   x: [..., in]   weight: [out, in]   y: [..., out]
///
/// The weight has PyTorch's orientation; it is transposed while it is packed into panels, never as
/// a whole. Each element of y is one chain of fused multiply-adds (Note [Matmul order]). ShapeError
/// if ranks or sizes do not fit, DtypeError unless both are float32 or both are float64.
Tensor linear(const Tensor& x, const Tensor& weight);

}  // namespace moegrad::ops
