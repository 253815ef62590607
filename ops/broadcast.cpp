// SPDX-License-Identifier: Apache-2.0
#include "ops/broadcast.h"

#include <algorithm>

#include "ops/dims.h"
#include "ops/kernels/reduce.h"

namespace moegrad::ops {

bool can_expand(const Shape& from, const Shape& to) {
  if (from.ndim() > to.ndim()) return false;
  for (std::int64_t i = -from.ndim(); i < 0; ++i) {
    if (from[i] != to[i] && from[i] != 1) return false;
  }
  return true;
}

Shape broadcast_shapes(std::string_view op, const Shape& a, const Shape& b) {
  Shape shape = a.ndim() >= b.ndim() ? a : b;
  for (std::int64_t i = -std::min(a.ndim(), b.ndim()); i < 0; ++i) {
    check<ShapeError>(a[i] == b[i] || a[i] == 1 || b[i] == 1, op, ": shapes ", a, " and ", b,
                      " do not broadcast");
    shape[i] = a[i] == 1 ? b[i] : a[i];
  }
  return shape;
}

Shape broadcast_strides(const Tensor& a, const Shape& shape) {
  Shape strides = shape;
  for (std::int64_t i = -shape.ndim(); i < 0; ++i) {
    const bool repeated = i < -a.ndim() || (a.dim(i) == 1 && shape[i] != 1);
    strides[i] = repeated ? 0 : a.strides()[i];
  }
  return strides;
}

Tensor sum_to_shape(const Tensor& x, const Shape& shape) {
  Tensor sum = x;
  // Sums dimension by dimension from the front. Neighbouring summed dimensions are summed as one.
  const auto is_summed = [&](std::int64_t i) {
    return i < -shape.ndim() || (shape[i] == 1 && x.dim(i) != 1);
  };
  std::int64_t outer = 1;
  for (std::int64_t i = -x.ndim(); i < 0;) {
    if (!is_summed(i)) {
      outer *= x.dim(i++);
      continue;
    }
    std::int64_t n = 1, inner = 1;
    while (i < 0 && is_summed(i)) n *= x.dim(i++);
    for (std::int64_t j = i; j < 0; ++j) inner *= x.dim(j);
    Tensor next = Tensor::empty({outer, inner}, x.dtype());
    dispatch_floating(x.dtype(), [&]<class T>() {
      kernels::sum_columns<T>(sum.data<T>().data(), next.mutable_data<T>().data(), outer, n, inner);
    });
    sum = next;
  }
  return Tensor::as_strided(sum, shape, row_major_strides(shape), sum.offset());
}

}  // namespace moegrad::ops
