// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "framework/tensor/shape.h"

namespace moegrad::test {

/// What the references of the op table compute with: row-major doubles and plain loops. It is no
/// Tensor, so that no op can slip into a reference.
struct Array {
  Shape shape;
  std::vector<double> values;

  explicit Array(const Shape& sizes, double value = 0)
      : shape(sizes), values(static_cast<std::size_t>(sizes.numel()), value) {}

  double& operator[](const Shape& index) { return values[position(index)]; }
  double operator[](const Shape& index) const { return values[position(index)]; }
  std::int64_t dim(std::int64_t i) const { return shape[i]; }

 private:
  std::size_t position(const Shape& index) const {
    std::int64_t at = 0;
    for (std::int64_t i = 0; i < shape.ndim(); ++i) at = at * shape[i] + index[i];
    return static_cast<std::size_t>(at);
  }
};

using Arrays = std::vector<Array>;

/// Calls body(index) for every index of `shape`, in row-major order.
template <class Body>
void for_each_index(const Shape& shape, const Body& body) {
  for (std::int64_t flat = 0; flat < shape.numel(); ++flat) {
    Shape index = shape;
    auto rest = flat;
    for (std::int64_t i = shape.ndim() - 1; i >= 0; --i) {
      index[i] = rest % shape[i];
      rest /= shape[i];
    }
    body(index);
  }
}

/// The array of shape `shape` whose element i is element from(i) of `x`.
template <class From>
Array gather(const Array& x, const Shape& shape, const From& from) {
  Array y(shape);
  for_each_index(shape, [&](const Shape& i) { y[i] = x[from(i)]; });
  return y;
}

/// Dimension `dim` of `ndim`, counted from the front.
inline std::int64_t from_front(std::int64_t dim, std::int64_t ndim) {
  return dim < 0 ? dim + ndim : dim;
}

/// The element of `x` that stands at `index` of a wider shape.
inline double broadcast_at(const Array& x, const Shape& index) {
  Shape own;
  for (auto i = -x.shape.ndim(); i < 0; ++i) own.push_back(x.shape[i] == 1 ? 0 : index[i]);
  return x[own];
}

}  // namespace moegrad::test
