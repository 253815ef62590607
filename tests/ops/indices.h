// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "framework/tensor/fill.h"
#include "framework/tensor/tensor.h"

namespace moegrad::test {

/// An int64 tensor: what ops take as indices, token ids, targets or positions.
inline Tensor indices_of(const std::vector<std::int64_t>& values, const Shape& shape) {
  return Tensor::from(values, shape);
}
inline Tensor indices_of(const std::vector<std::int64_t>& values) {
  return indices_of(values, {std::ssize(values)});
}

}  // namespace moegrad::test
