// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/runtime/error.h"
#include "nn/module.h"
#include "ops/copies.h"
#include "ops/nz.h"

namespace moegrad::nn {

/// An input of a product as `layer` reads it: float32 in its compute_dtype(), if it has one.
inline Tensor operand(const Module& layer, const Tensor& x) {
  const bool rounds = x.defined() && x.dtype() == Dtype::kFloat32;
  return rounds ? ops::cast(x, layer.compute_dtype().value_or(x.dtype())) : x;
}

/// The same for a weight, the stack of `blocks`. In bfloat16 it is packed for the forward product,
/// which reads W or, if `transposed`, W^T, unless fully_shard has gathered it so. Error if it has,
/// but the layer no longer computes in bfloat16.
inline Tensor weight_operand(const Module& layer, const Tensor& weight, const NzBlocks& blocks,
                             bool transposed) {
  const auto dtype = layer.compute_dtype().value_or(weight.dtype());
  check(layer.compute_dtype() || dtype != Dtype::kBFloat16,
        "compute_in: must not be turned off for a module whose weights fully_shard gathers in "
        "bfloat16 (param_dtype), got one that computes in float32");
  return dtype == weight.dtype() ? weight : ops::cast_to_nz(weight, blocks, transposed);
}

/// The same for y = x W^T and a weight [out, in].
inline Tensor weight_operand(const Module& layer, const Tensor& weight) {
  return weight_operand(layer, weight, {1, weight.dim(0), weight.dim(1)}, /*transposed=*/true);
}

}  // namespace moegrad::nn
