// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

// A tensor cut into pieces, which are views of it, and pieces joined. Semantics are PyTorch's; a
// negative dimension counts from the end. A dimension out of range is a ShapeError. Gradients that
// these ops return are contiguous.

/// Pieces of `size` along `dim`; the last one may be smaller.
TensorList split(const Tensor& a, std::int64_t size, std::int64_t dim);
/// Pieces of these sizes along `dim`, which they must add up to (ShapeError).
TensorList split(const Tensor& a, const std::vector<std::int64_t>& sizes, std::int64_t dim);
TensorList split(const Tensor& a, std::initializer_list<std::int64_t> sizes, std::int64_t dim);
/// Pieces of ceil(size / n) along `dim`; the last one may be smaller, and there may be fewer than
/// n. Of a dimension of size 0 there are n.
TensorList chunk(const Tensor& a, std::int64_t n, std::int64_t dim);
/// Joins along an existing dimension; the other sizes and the dtype must agree. Any number of
/// tensors: more than Function::kMaxInputs are joined in runs of that many, and these again, which
/// copies the elements once more.
Tensor cat(const TensorList& tensors, std::int64_t dim);
/// Joins tensors of one shape, any number as in cat, along a new dimension.
Tensor stack(const TensorList& tensors, std::int64_t dim);

}  // namespace moegrad::ops
