// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "framework/tensor/named_tensor.h"
#include "tests/ops/op_table.h"

namespace moegrad::test {

/// What torch_oracle.py is given: a description of the cases, and their tensors.
struct OracleCases {
  Json json = {{"ops", Json::array()},
               {"optimizers", Json::array()},
               {"clips", Json::array()},
               {"schedules", Json::array()}};
  NamedTensors tensors;

  /// Copies of the defined ones of `list`, under "name/0", "name/1", ...
  void add(const std::string& name, const TensorList& list);
};

/// Ten steps of each optimizer that PyTorch 1.13 has, in two groups with settings of their own:
/// parameters at the start and after each step, the gradients, some of which are missing at some
/// steps.
void add_optimizer_cases(std::uint64_t seed, OracleCases& cases);

/// Gradients before and after clip_grad_norm, and the norm.
void add_clip_cases(std::uint64_t seed, OracleCases& cases);

/// The learning rates of all steps.
void add_schedule_cases(std::uint64_t seed, OracleCases& cases);

}  // namespace moegrad::test
