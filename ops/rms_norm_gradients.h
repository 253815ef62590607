// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "framework/tensor/tensor.h"
#include "ops/kernels/halving.h"

namespace moegrad::ops {

/// What the backward of rms_norm, alone or fused, writes. Gradients that are not needed stay
/// undefined; the kernels get null pointers for them. Rows are [tokens, heads].
struct RMSNormGradients {
  std::int64_t tokens, heads;
  Tensor x, weight;
  Tensor partial;  // [heads, parts of the tokens, D], partial sums of the weight's gradient

  RMSNormGradients(const Tensor& like_x, std::int64_t of_heads, bool needs_x, bool needs_weight)
      : heads(of_heads) {
    const auto d = like_x.dim(-1);
    tokens = heads == 0 ? 0 : like_x.numel() / d / heads;
    if (needs_x) x = Tensor::empty(like_x.shape(), like_x.dtype());
    if (!needs_weight) return;
    weight = Tensor::empty({d}, arithmetic_dtype(like_x.dtype()));
    partial = Tensor::empty({heads, kernels::count_parts(tokens), d}, weight.dtype());
  }
};

}  // namespace moegrad::ops
