// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "framework/tensor/named_tensor.h"

namespace moegrad::testing {

/// All tensors of a safetensors file of F32, F64 and I64 tensors, for comparisons with golden data.
/// Error for anything that the format does not allow.
NamedTensors read_safetensors(const std::string& path);

/// The tensor of that name; Error when there is none.
const Tensor& find(const NamedTensors& tensors, const std::string& name);

}  // namespace moegrad::testing
