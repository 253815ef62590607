// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

// Views share the storage of their operand. Semantics are PyTorch's; a negative dimension counts
// from the end. A dimension out of range is a ShapeError. Gradients that these ops return are
// contiguous.

/// The same elements, row-major, under another shape; one size may be -1. Needs a contiguous
/// tensor (LayoutError). A FRACTAL_NZ tensor of blocks [b, k, n] may be viewed as [b, k, n] or
/// [b * k, n].
Tensor view(const Tensor& a, const Shape& shape);
/// A view of `a` if it is contiguous, otherwise of a contiguous copy.
Tensor reshape(const Tensor& a, const Shape& shape);
Tensor transpose(const Tensor& a, std::int64_t dim0, std::int64_t dim1);
/// Dimension i of the result is dimension dims[i] of `a`.
Tensor permute(const Tensor& a, const std::vector<std::int64_t>& dims);
/// Elements [start, start + length) of dimension `dim`. A negative start counts from the end.
Tensor narrow(const Tensor& a, std::int64_t dim, std::int64_t start, std::int64_t length);
/// Element i of dimension `dim`, which is removed. A negative i counts from the end.
Tensor select(const Tensor& a, std::int64_t dim, std::int64_t i);
/// Dimensions start_dim to end_dim become one, as by reshape(). A tensor of shape [] becomes [1].
/// ShapeError for an end before the start.
Tensor flatten(const Tensor& a, std::int64_t start_dim = 0, std::int64_t end_dim = -1);
/// Inserts a dimension of size 1 so that it is dimension `dim` of the result.
Tensor unsqueeze(const Tensor& a, std::int64_t dim);
/// Removes dimension `dim`, which must be of size 1.
Tensor squeeze(const Tensor& a, std::int64_t dim);
/// Repeats dimensions of size 1, and new leading ones, with stride 0. A size of -1 keeps that of
/// `a`.
Tensor expand(const Tensor& a, const Shape& shape);

}  // namespace moegrad::ops
