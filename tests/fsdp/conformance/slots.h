// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "framework/tensor/named_tensor.h"
#include "nn/module.h"

namespace moegrad::test {

/// What the module computes with: gathered parameters where there are any, a tied one once. Differs
/// from PyTorch, where named_parameters() gives these.
inline NamedTensors tensors_in_slots(const nn::Module& module) {
  NamedTensors tensors;
  for (const auto& slot : module.parameter_slots()) {
    const bool tied = std::ranges::any_of(
        tensors, [&](const NamedTensor& seen) { return seen.tensor.is(*slot.tensor); });
    if (!tied) tensors.push_back({slot.name, *slot.tensor});
  }
  return tensors;
}

}  // namespace moegrad::test
