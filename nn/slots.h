// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "framework/tensor/tensor.h"
#include "nn/initial_values.h"
#include "nn/parameter_layout.h"

namespace moegrad::nn {

/// Where a module keeps a parameter. fully_shard changes what `*tensor` is: a shard, or the
/// gathered whole parameter while the module computes with it.
struct ParameterSlot {
  std::string name;  // full name
  Tensor* tensor = nullptr;
  ParameterLayout layout;
  /// The parameter itself, if `*tensor` may be a copy of it; otherwise undefined or null. All
  /// copies of a slot share it.
  std::shared_ptr<Tensor> kept = nullptr;
  InitialValues initial = {};
  /// Whether it was registered under a MetaGuard, so that its constructor gave it no values.
  bool made_on_meta = false;

  /// The tensor that optimizers, checkpoints and initialisation use, whatever is gathered now.
  Tensor& parameter() const { return kept != nullptr && kept->defined() ? *kept : *tensor; }
};

/// Where a module keeps a buffer.
struct BufferSlot {
  std::string name;  // full name
  Tensor* tensor = nullptr;
  bool persistent = true;
  InitialValues initial = {};
  /// Whether it was registered under a MetaGuard, so that its constructor gave it no values.
  bool made_on_meta = false;
};

}  // namespace moegrad::nn
