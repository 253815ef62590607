// SPDX-License-Identifier: Apache-2.0
#include "nn/sequential.h"

#include <string>

#include "framework/runtime/error.h"

namespace moegrad::nn {

void Sequential::push_back(TensorModule module) {
  auto place = std::make_unique<TensorModule>(std::move(module));
  register_module(std::to_string(size()), *place);
  modules_.push_back(std::move(place));
}

Module& Sequential::operator[](std::int64_t i) const {
  check<ValueError>(0 <= i && i < size(), "Sequential: index must be in [0, ", size(), "), got ",
                    i);
  return modules_[static_cast<std::size_t>(i)]->module();
}

Tensor Sequential::forward(const Tensor& x) {
  check<ValueError>(size() > 0, "Sequential: must have a module to call, got none");
  Tensor y = x;
  for (const auto& module : modules_) y = (*module)(y);
  return y;
}

}  // namespace moegrad::nn
