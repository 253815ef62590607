// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

/// True if repeating the dimensions of size 1 and the missing leading dimensions of `from` gives
/// `to`.
bool can_expand(const Shape& from, const Shape& to);

/// The shape to which both `a` and `b` broadcast; ShapeError if there is none.
Shape broadcast_shapes(std::string_view op, const Shape& a, const Shape& b);

/// Strides that walk `a` in the wider `shape`: 0 for repeated dimensions.
Shape broadcast_strides(const Tensor& a, const Shape& shape);

/// The adjoint of repeating: sums contiguous `x` down to `shape` by halving (Note [Sums by
/// halving]), dimensions that are not neighbours one after the other. Not recorded.
Tensor sum_to_shape(const Tensor& x, const Shape& shape);

}  // namespace moegrad::ops
