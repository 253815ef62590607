// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string_view>

#include "framework/tensor/named_tensor.h"

namespace moegrad::test {

/// The tensor of that name; Error when there is none.
inline const Tensor& find(const NamedTensors& tensors, std::string_view name) {
  const auto found = std::ranges::find(tensors, name, &NamedTensor::name);
  check(found != tensors.end(), "find: no tensor '", name, "'");
  return found->tensor;
}

}  // namespace moegrad::test
