// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "nn/module.h"
#include "ops/copies.h"
#include "ops/nz.h"

namespace moegrad::nn {

/// An input of a product as `layer` reads it: in its compute_dtype(), if it has one.
inline Tensor operand(const Module& layer, const Tensor& x) {
  return ops::cast(x, layer.compute_dtype().value_or(x.dtype()));
}

/// The same for a weight, the stack of `blocks`. In bfloat16 it is packed for the forward product,
/// which reads W or, if `transposed`, W^T, unless fully_shard has gathered it so.
inline Tensor weight_operand(const Module& layer, const Tensor& weight, const NzBlocks& blocks,
                             bool transposed) {
  const auto dtype = layer.compute_dtype().value_or(weight.dtype());
  return dtype == weight.dtype() ? weight : ops::cast_to_nz(weight, blocks, transposed);
}

/// The same for y = x W^T and a weight [out, in].
inline Tensor weight_operand(const Module& layer, const Tensor& weight) {
  return weight_operand(layer, weight, {1, weight.dim(0), weight.dim(1)}, /*transposed=*/true);
}

}  // namespace moegrad::nn
