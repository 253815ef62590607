// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

/// Cosines and sines of the rotary angles, [T, D/2] each.
struct RopeTable {
  Tensor cos;
  Tensor sin;
};

/// The table for int64 positions [T]:
///
///     cos[t, i] = cos(positions[t] * theta^(-2i / D)),   sin likewise,   D = head_dim
///
/// Angles are computed in double and rounded to `dtype` once.
///
/// Errors: ShapeError unless positions is [T], DtypeError unless it is int64, ValueError unless
/// head_dim is even and at least 2 and theta is positive.
RopeTable rope_table(const Tensor& positions, std::int64_t head_dim, double theta, Dtype dtype);

/// ShapeError unless `table` is [T, D/2] for x [T, N, D], DtypeError unless it has the dtype of x,
/// or is float32 for x in bfloat16.
void check_rope_table(std::string_view op, const Tensor& x, const RopeTable& table);

/// Rotary position embedding, the pairs being (i, i + D/2) as in Hugging Face's rotate_half:
///
///     y[i]       = x[i] cos[i] - x[i + D/2] sin[i]
///     y[i + D/2] = x[i + D/2] cos[i] + x[i] sin[i]          x, y [T, N, D]
///
/// x and y may be bfloat16: the table and the arithmetic are float32 then, and y is rounded once.
///
/// Errors: ShapeError unless x is [T, N, D] and the table [T, D/2], DtypeError for other mixed
/// dtypes.
///
/// Reference: Su et al., 2021, https://arxiv.org/abs/2104.09864
Tensor rope(const Tensor& x, const RopeTable& table);

/// The same for the first R channels of each head, with a table [T, R/2]; the others stay as they
/// are. R is at most D. Errors as rope.
Tensor partial_rope(const Tensor& x, const RopeTable& table);

}  // namespace moegrad::ops
