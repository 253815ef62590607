// SPDX-License-Identifier: Apache-2.0
#pragma once

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
/// The same bits as operator+ and ops::rms_norm, gradients included: in backward, that of sum and
/// the one through the norm are added as the latter is formed, and x and residual share the result.
///
/// Errors: ShapeError when x has no last dimension of at least 1, residual is not of the shape of
/// x, or weight is not [D]; DtypeError when the dtypes differ.
AddRMSNormResult add_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& weight,
                              double eps = 1e-6);

}  // namespace moegrad::ops
