// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "nn/module.h"
#include "ops/copies.h"

namespace moegrad::nn {

/// An input or a weight of a product as `layer` reads it: in its compute_dtype(), if it has one.
inline Tensor operand(const Module& layer, const Tensor& tensor) {
  return ops::cast(tensor, layer.compute_dtype().value_or(tensor.dtype()));
}

}  // namespace moegrad::nn
