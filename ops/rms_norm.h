// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

/// ShapeError unless `weight` is [D] for x [..., D].
void check_rms_norm_weight(std::string_view op, const Tensor& x, const Tensor& weight);

/// DtypeError unless a norm of rows of one dtype may have a result of the other.
void check_norm_dtype(std::string_view op, std::string_view name, Dtype rows, Dtype result);

/// Scales each row of x to unit root mean square, then by the weight:
///
///     y = x / sqrt(mean(x^2) + eps) * weight        x, y [..., D]; weight [D]
///
/// The weight's gradient is a sum over rows by halving (Note [Sums by halving]). If rows belong to
/// tokens and `heads` heads, as in x [T, heads, D], it is one over the tokens for each head, and
/// then over heads, halved down to one: ranks may divide the heads.
///
/// x and y may be bfloat16, either one or both: the weight and the arithmetic are float32 then, and
/// y is rounded once. The dtype of y is that of x unless another is given.
///
/// Errors: ShapeError if x has no last dimension of at least 1 or weight is not [D], DtypeError for
/// other mixed dtypes, ValueError unless eps is finite and >= 0, and heads divide the rows.
///
/// Reference: Zhang & Sennrich, 2019, https://arxiv.org/abs/1910.07467
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps = 1e-6, std::int64_t heads = 1,
                std::optional<Dtype> dtype = std::nullopt);

}  // namespace moegrad::ops
