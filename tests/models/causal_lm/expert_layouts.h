// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "framework/tensor/named_tensor.h"
#include "nn/module.h"

namespace moegrad::test {

/// A stacked expert parameter, or its gradient, as Hugging Face orients it: [E*in, out] becomes
/// [E*out, in]. Others come back as they are.
Tensor to_hugging_face(const Tensor& stored, const nn::ParameterLayout& layout);

/// The value for `slot` from tensors with Hugging Face's names, one per expert and projection:
/// `prefix` + name, in the slot's own orientation.
Tensor from_hugging_face(const NamedTensors& tensors, const nn::ParameterSlot& slot,
                         const std::string& prefix = "");

/// Values for all parameters of `module`.
NamedTensors state_from_hugging_face(const NamedTensors& tensors, const nn::Module& module);

}  // namespace moegrad::test
