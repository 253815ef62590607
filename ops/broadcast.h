// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

/// True when sizes 1 and missing leading dimensions of `from`, repeated, give `to`.
bool can_expand(const Shape& from, const Shape& to);

/// The shape in which `a` and `b` meet; ShapeError when there is none.
Shape broadcast_shapes(std::string_view op, const Shape& a, const Shape& b);

/// Strides that walk `a` in the wider `shape`: 0 where it is repeated.
Shape broadcast_strides(const Tensor& a, const Shape& shape);

/// The adjoint of repeating: sums contiguous `x` down to `shape`, in ascending order. Not recorded.
Tensor sum_to_shape(const Tensor& x, const Shape& shape);

}  // namespace moegrad::ops
