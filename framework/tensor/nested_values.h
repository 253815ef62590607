// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "framework/runtime/error.h"
#include "framework/tensor/shape.h"

namespace moegrad {

/// Numbers written in nested braces, such as {{1, 2}, {3, 4}}, for Tensor::of().
class NestedValues {
 public:
  /// A number, of shape []. ValueError for an integer that no double holds.
  template <class T>
  requires std::integral<T> || std::floating_point<T> NestedValues(T number)
      : values_{static_cast<double>(number)} {
    if constexpr (std::integral<T> && sizeof(T) > 4) {
      constexpr T kLargest = T{1} << 53;
      check<ValueError>(number <= kLargest && number + kLargest >= 0,
                        "Tensor::of: integers must be in [-2^53, 2^53], got ", number);
    }
  }
  /// `parts` along a new first dimension. ShapeError unless all have the same shape.
  NestedValues(std::initializer_list<NestedValues> parts);

  const Shape& shape() const { return shape_; }
  /// Row-major.
  const std::vector<double>& values() const { return values_; }

 private:
  Shape shape_;
  std::vector<double> values_;
};

}  // namespace moegrad
