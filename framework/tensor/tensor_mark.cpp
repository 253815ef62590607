// SPDX-License-Identifier: Apache-2.0
#include "framework/tensor/tensor_mark.h"

#include <algorithm>

#include "framework/tensor/tensor_impl.h"

namespace moegrad {

void set_mark(const Tensor& tensor, const TensorMark& mark, bool on) {
  auto& marks = checked_impl(tensor.impl()).marks;
  std::erase(marks, &mark);
  if (on) marks.push_back(&mark);
}

bool has_mark(const Tensor& tensor, const TensorMark& mark) {
  return std::ranges::count(checked_impl(tensor.impl()).marks, &mark) > 0;
}

}  // namespace moegrad
