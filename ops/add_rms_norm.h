// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

struct AddRMSNormResult {
  Tensor sum;  // [..., D]
  Tensor y;    // [..., D]
};

/// A residual connection and the norm that follows it, in one pass:
///
///     sum = x + residual,  y = rms_norm(sum, weight, eps)       x, residual [..., D]; weight [D]
///
/// The same bits as operator+ and ops::rms_norm, gradients included. Backward adds the gradient of
/// sum while it forms the gradient through the norm. x and residual share the result.
///
/// In float32, x or residual, not both, and y may be bfloat16: sum, its gradient and the arithmetic
/// are float32, and y is rounded once. The dtype of y is that of sum unless another is given.
///
/// Errors: ShapeError if x has no last dimension of at least 1, residual does not have the shape of
/// x, or weight is not [D]; DtypeError for other mixed dtypes.
AddRMSNormResult add_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& weight,
                              double eps = 1e-6, std::optional<Dtype> dtype = std::nullopt);

}  // namespace moegrad::ops
