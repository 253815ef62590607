// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "framework/tensor/named_tensor.h"

namespace moegrad::optim {

// The tensors that an optimizer keeps from step to step.

/// Zeros of the parameter's shape and dtype, cut like the parameter.
Tensor zero_state(const Tensor& parameter);

/// Zeros of another shape, whole and the same on all ranks of the parameter.
Tensor whole_state(const Tensor& parameter, const Shape& shape, Dtype dtype);

/// Copies the values of `given` into the tensors `own` of the same names. Nothing is copied if it
/// throws, with `subject` in front: Error unless names agree, ShapeError unless shapes agree,
/// DtypeError unless dtypes agree, ValueError for a shard of another part than this rank's.
void load_state(std::string_view subject, NamedTensors own, const NamedTensors& given);

}  // namespace moegrad::optim
