// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "framework/runtime/error.h"
#include "framework/tensor/shape.h"

namespace moegrad::ops {

/// `dim` counted from the front; ShapeError unless it is in [-ndim, ndim), so always for shape [].
inline std::int64_t wrap_dim(std::string_view op, std::int64_t dim, std::int64_t ndim) {
  check<ShapeError>(ndim > 0, op, ": needs at least one dimension, got []");
  check<ShapeError>(-ndim <= dim && dim < ndim, op, ": dimension must be in [", -ndim, ", ",
                    ndim - 1, "], got ", dim);
  return dim < 0 ? dim + ndim : dim;
}

/// A shape as [outer, n, inner], where n is one of its dimensions.
struct Extents {
  std::int64_t outer = 1;
  std::int64_t n = 1;
  std::int64_t inner = 1;
};

inline Extents extents_at(const Shape& shape, std::int64_t dim) {
  Extents extents;
  for (std::int64_t i = 0; i < dim; ++i) extents.outer *= shape[i];
  extents.n = shape[dim];
  for (std::int64_t i = dim + 1; i < shape.ndim(); ++i) extents.inner *= shape[i];
  return extents;
}

/// `shape` without dimension `dim`, or with size 1 there.
inline Shape reduced_shape(const Shape& shape, std::int64_t dim, bool keepdim) {
  Shape result;
  for (std::int64_t i = 0; i < shape.ndim(); ++i) {
    if (i != dim) {
      result.push_back(shape[i]);
    } else if (keepdim) {
      result.push_back(1);
    }
  }
  return result;
}

}  // namespace moegrad::ops
