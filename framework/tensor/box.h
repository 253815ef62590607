// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "framework/tensor/shape.h"

namespace moegrad {

/// The part [begin, begin + shape) of a tensor.
struct Box {
  Shape begin = {};
  Shape shape = {};

  friend bool operator==(const Box&, const Box&) = default;
};

/// The box that covers the whole tensor of this shape.
Box whole_box(const Shape& shape);

/// Whether two parts of one tensor have elements in common.
bool overlap(const Box& a, const Box& b);

/// Copies the elements that two parts of one tensor have in common. Both are stored row-major, with
/// elements of `size` bytes.
void copy_overlap(const Box& source, const std::byte* from, const Box& target, std::byte* to,
                  std::int64_t size);

}  // namespace moegrad
