// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "framework/tensor/tensor.h"
#include "ops/no_dimension.h"

namespace moegrad::ops {

// Masks are bool tensors. Shapes broadcast as in PyTorch (ShapeError).

// Comparisons of two tensors of one dtype, any but bool (DtypeError), or of a tensor with a number.
// The number is first rounded to the dtype of a tensor of reals, as in PyTorch; int64 is compared
// with the number itself. Every comparison with NaN is false, but for ne.

/// a == b
Tensor eq(const Tensor& a, const Tensor& b);
Tensor eq(const Tensor& a, double b);
/// a != b
Tensor ne(const Tensor& a, const Tensor& b);
Tensor ne(const Tensor& a, double b);
/// a < b
Tensor lt(const Tensor& a, const Tensor& b);
Tensor lt(const Tensor& a, double b);
/// a <= b
Tensor le(const Tensor& a, const Tensor& b);
Tensor le(const Tensor& a, double b);
/// a > b
Tensor gt(const Tensor& a, const Tensor& b);
Tensor gt(const Tensor& a, double b);
/// a >= b
Tensor ge(const Tensor& a, const Tensor& b);
Tensor ge(const Tensor& a, double b);

/// Where `a` is NaN.
Tensor isnan(const Tensor& a);

// Combinations of masks; another dtype is a DtypeError.
Tensor logical_and(const Tensor& a, const Tensor& b);
Tensor logical_or(const Tensor& a, const Tensor& b);
Tensor logical_not(const Tensor& a);

/// Whether any element is true, or all are, with shape []; of no elements, false and true.
Tensor any(const Tensor& a);
Tensor all(const Tensor& a);
/// The same along a dimension, which is removed, or has size 1 with `keepdim`. One out of range is
/// a ShapeError.
Tensor any(const Tensor& a, std::int64_t dim, bool keepdim = false);
Tensor all(const Tensor& a, std::int64_t dim, bool keepdim = false);
template <NoDimension T>
Tensor any(const Tensor& a, T no_dim, bool keepdim = false) = delete;
template <NoDimension T>
Tensor all(const Tensor& a, T no_dim, bool keepdim = false) = delete;

/// The positions of the elements that are not 0, or are true, in row-major order: int64 [n, ndim]
/// of `a` of any dtype. NaN is not 0.
Tensor nonzero(const Tensor& a);

/// Elements of `a` where `condition` is true, of `b` where it is false. `a` and `b` have one dtype,
/// which may be any, and `condition` is bool (DtypeError).
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
/// The same with a number for all elements. ValueError if the dtype of the tensor does not hold it.
Tensor where(const Tensor& condition, const Tensor& a, double b);
Tensor where(const Tensor& condition, double a, const Tensor& b);
/// `a` with `value` where `mask` is true. ValueError if the dtype of `a` does not hold `value`.
Tensor masked_fill(const Tensor& a, const Tensor& mask, double value);

}  // namespace moegrad::ops
