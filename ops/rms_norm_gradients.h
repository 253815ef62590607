// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/tensor/tensor.h"
#include "ops/kernels/rms_norm.h"

namespace moegrad::ops {

/// What the backward of rms_norm, alone or fused, writes. Gradients that are not needed stay
/// undefined; the kernels get null pointers for them.
struct RMSNormGradients {
  Tensor x, weight;
  Tensor partial;  // [pieces, D], partial sums of the weight's gradient

  RMSNormGradients(const Tensor& like_x, bool needs_x, bool needs_weight) {
    const auto d = like_x.dim(-1);
    if (needs_x) x = Tensor::empty(like_x.shape(), like_x.dtype());
    if (!needs_weight) return;
    weight = Tensor::empty({d}, like_x.dtype());
    partial = Tensor::empty({kernels::rms_norm_pieces(like_x.numel() / d), d}, like_x.dtype());
  }
};

}  // namespace moegrad::ops
