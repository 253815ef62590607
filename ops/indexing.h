// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

// Semantics are PyTorch's; a negative dimension counts from the end, and one out of range is a
// ShapeError. Indices are int64 (DtypeError), at least 0 and less than the size that they index
// (ValueError). Where several are equal, what meets in one element is added in ascending order.

/// Slice i along `dim` of the result is slice index[i] of `a`; index: [n]. `a` may be of any dtype.
Tensor index_select(const Tensor& a, std::int64_t dim, const Tensor& index);
/// `a`, with slice i along `dim` of `source` added to slice index[i]; index: [n], source: as `a`,
/// but n along `dim`.
Tensor index_add(const Tensor& a, std::int64_t dim, const Tensor& index, const Tensor& source);
/// Element i of the result, of the shape of `index`, is the element of `a` (of any dtype) at i but
/// for dimension `dim`, where it is at index[i]. `index` has as many dimensions as `a`, and in the
/// others at most its sizes.
Tensor gather(const Tensor& a, std::int64_t dim, const Tensor& index);
/// `a`, with each element of `source` added where gather() would read: y[..., index[i], ...] +=
/// source[i]. `index` and `source` have one shape, which fits `a` as in gather.
Tensor scatter_add(const Tensor& a, std::int64_t dim, const Tensor& index, const Tensor& source);
/// Each slice along `dim` n times in a row. ValueError for a negative n.
Tensor repeat_interleave(const Tensor& a, std::int64_t n, std::int64_t dim);
/// Slice i along `dim` counts[i] times in a row; counts: int64 [size of dim], not negative.
Tensor repeat_interleave(const Tensor& a, const Tensor& counts, std::int64_t dim);
/// int64 [..., C] of int64 indices [...] in [0, C): 1 at the place of each index, 0 elsewhere. With
/// num_classes = -1, C is one more than the largest index (ValueError if there is none).
Tensor one_hot(const Tensor& indices, std::int64_t num_classes = -1);
/// The elements in reverse order along each of `dims`, which must differ. A copy, of any dtype.
Tensor flip(const Tensor& a, const std::vector<std::int64_t>& dims);

}  // namespace moegrad::ops
