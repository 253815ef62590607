// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

/// ShapeError unless `weight` is [D] for x [..., D].
void check_rms_norm_weight(std::string_view op, const Tensor& x, const Tensor& weight);

/// Scales each row of x to unit root mean square, then by the weight:
///
///     y = x / sqrt(mean(x^2) + eps) * weight        x, y [..., D]; weight [D]
///
/// Errors: ShapeError if x has no last dimension of at least 1 or weight is not [D], DtypeError if
/// the dtypes differ, ValueError unless eps is finite and >= 0.
///
/// Reference: Zhang & Sennrich, 2019, https://arxiv.org/abs/1910.07467
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps = 1e-6);

}  // namespace moegrad::ops
