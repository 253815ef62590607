// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <numeric>
#include <vector>

#include "tests/testing.h"

namespace moegrad::test {

/// float64 0, 1, 2, ... in row-major order.
inline Tensor counting(const Shape& shape) {
  std::vector<double> values(static_cast<std::size_t>(shape.numel()));
  std::iota(values.begin(), values.end(), 0.0);
  return Tensor::from(values, shape);
}

/// Whether `x` is of that shape and has these float64 elements.
inline ::testing::AssertionResult holds(const Tensor& x, const Shape& shape,
                                        const std::vector<double>& values) {
  return bitwise_equal(x, Tensor::from(values, shape));
}

inline bool shares_storage(const Tensor& a, const Tensor& b) {
  return &a.storage() == &b.storage();
}

}  // namespace moegrad::test
