// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

// Semantics are PyTorch's; a negative dimension counts from the end. A dimension out of range is a
// ShapeError. Gradients that these ops return are contiguous.

// --- views: they share the storage of `a` (shape_ops.cpp)

/// The same elements, row-major, under another shape; one size may be -1. Needs a contiguous
/// tensor (LayoutError). A FRACTAL_NZ tensor of blocks [b, k, n] may be viewed as [b, k, n] or
/// [b * k, n].
Tensor view(const Tensor& a, const Shape& shape);
/// A view if possible, otherwise a view of a contiguous copy.
Tensor reshape(const Tensor& a, const Shape& shape);
Tensor transpose(const Tensor& a, std::int64_t dim0, std::int64_t dim1);
/// Dimension i of the result is dimension dims[i] of `a`.
Tensor permute(const Tensor& a, const std::vector<std::int64_t>& dims);
/// Elements [start, start + length) of dimension `dim`.
Tensor narrow(const Tensor& a, std::int64_t dim, std::int64_t start, std::int64_t length);
/// Pieces of `size` along `dim`; the last one may be smaller.
TensorList split(const Tensor& a, std::int64_t size, std::int64_t dim);
/// `n` pieces of equal size along `dim`, which n must divide.
TensorList chunk(const Tensor& a, std::int64_t n, std::int64_t dim);
/// Inserts a dimension of size 1 so that it is dimension `dim` of the result.
Tensor unsqueeze(const Tensor& a, std::int64_t dim);
/// Removes dimension `dim`, which must be of size 1.
Tensor squeeze(const Tensor& a, std::int64_t dim);
/// Repeats dimensions of size 1 and adds leading dimensions, both with stride 0.
Tensor expand(const Tensor& a, const Shape& shape);

// --- copies (shape_ops_copy.cpp)

/// `a` itself when it is contiguous, otherwise a row-major copy, which the current rank counts in
/// counters().materialized_transposes. Every op calls this for what it needs row-major, its
/// backward for the gradient that it is given, so that no copy is made uncounted; the tape records
/// the copy where it records anything, which is not in a backward. A FRACTAL_NZ tensor comes back
/// as it is: the op that reads it accepts or refuses it.
Tensor contiguous(const Tensor& a);
/// Joins tensors along an existing dimension. The other sizes and the dtype must agree. There may
/// be any number of tensors: more than Function::kMaxInputs are joined in runs of that many, and
/// the runs are joined again, which copies the elements once more.
Tensor cat(const TensorList& tensors, std::int64_t dim);
/// Joins tensors of one shape, any number as in cat, along a new dimension.
Tensor stack(const TensorList& tensors, std::int64_t dim);
/// Row i of the result is row indices[i] of `a` [N, ...]; indices: int64 [n]. The gradient adds
/// rows in ascending i. An index outside [0, N) is a ValueError.
Tensor index_select(const Tensor& a, const Tensor& indices);
/// Converts between float32 and float64.
Tensor cast(const Tensor& a, Dtype dtype);

}  // namespace moegrad::ops
