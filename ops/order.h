// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "framework/tensor/tensor.h"
#include "ops/no_dimension.h"

namespace moegrad::ops {

// Elements by size, along one dimension, for float32, float64 or int64 (DtypeError). A negative
// dimension counts from the end, and one out of range is a ShapeError. Of equal elements
// the one with the lowest index comes first. NaN counts as larger than every number in an order,
// and is both the maximum and the minimum of what it is in. Gradients go to the elements that were
// taken.

struct ValuesAndIndices {
  Tensor values;
  Tensor indices;  // int64, of the shape of `values`: positions along the dimension
};

/// The largest or smallest elements. The dimension, which must not be empty (ShapeError), is
/// removed, or has size 1 with `keepdim`.
ValuesAndIndices max(const Tensor& a, std::int64_t dim, bool keepdim = false);
ValuesAndIndices min(const Tensor& a, std::int64_t dim, bool keepdim = false);
template <NoDimension T>
ValuesAndIndices max(const Tensor& a, T no_dim, bool keepdim = false) = delete;
template <NoDimension T>
ValuesAndIndices min(const Tensor& a, T no_dim, bool keepdim = false) = delete;
/// Their positions alone.
Tensor argmax(const Tensor& a, std::int64_t dim, bool keepdim = false);
Tensor argmin(const Tensor& a, std::int64_t dim, bool keepdim = false);
template <NoDimension T>
Tensor argmax(const Tensor& a, T no_dim, bool keepdim = false) = delete;
template <NoDimension T>
Tensor argmin(const Tensor& a, T no_dim, bool keepdim = false) = delete;
/// The largest or smallest of all elements, of which there must be one (ShapeError), with shape
/// []. Where several are equal, the first one gets the gradient; PyTorch divides it among them.
Tensor max(const Tensor& a);
Tensor min(const Tensor& a);
/// Its position among all elements in row-major order.
Tensor argmax(const Tensor& a);
Tensor argmin(const Tensor& a);
/// The k largest elements, or smallest ones unless `largest`, from the first to the last of them.
/// ValueError unless k is in [0, size of the dimension].
ValuesAndIndices topk(const Tensor& a, std::int64_t k, std::int64_t dim = -1, bool largest = true);
/// All elements, from the smallest to the largest, or the other way round; equal ones in their old
/// order.
ValuesAndIndices sort(const Tensor& a, std::int64_t dim = -1, bool descending = false);
template <NoDimension T>
ValuesAndIndices sort(const Tensor& a, T no_dim, bool descending = false) = delete;

}  // namespace moegrad::ops
