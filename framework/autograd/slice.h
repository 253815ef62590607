// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "framework/tensor/tensor.h"

namespace moegrad {

/// Elements of one dimension of an ND tensor, as a view with a gradient. Tensor::operator[],
/// Tensor::slice and ops::narrow check their arguments and then call it.
struct SliceRange {
  std::int64_t dim = 0;  // counted from the front
  std::int64_t begin = 0;
  std::int64_t length = 1;
  std::int64_t step = 1;
  bool removes_dim = false;  // with a length of 1
};

/// `op` names it in errors and on the tape.
Tensor apply_slice(std::string_view op, const Tensor& a, const SliceRange& range);

}  // namespace moegrad
