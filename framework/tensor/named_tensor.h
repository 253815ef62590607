// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "framework/tensor/tensor.h"

namespace moegrad {

/// A parameter and its full name, such as "model.layers.0.self_attn.q_proj.weight".
struct NamedTensor {
  std::string name;
  Tensor tensor;
};

using NamedTensors = std::vector<NamedTensor>;

}  // namespace moegrad
