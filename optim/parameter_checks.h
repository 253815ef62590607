// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "framework/tensor/named_tensor.h"
#include "framework/tensor/tensor_mark.h"

namespace moegrad::optim {

/// What every optimizer, and WeightAverage, asks of the tensors that it is made with: each is
/// defined, float32 or float64 (DtypeError), contiguous (LayoutError) and a leaf (Error), and none
/// is given twice, nor two under one name, since states are saved by name (ValueError). Messages
/// begin with `what`.
void check_parameters(std::string_view what, const NamedTensors& parameters);

/// WeightAverage::swap() has put the average in the parameter's place.
inline constexpr TensorMark kHoldsAverage{};

}  // namespace moegrad::optim
