// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/tensor/tensor.h"
#include "ops/cross_entropy.h"

namespace moegrad::ops {

/// cross_entropy(linear(x, weight, kLinearCrossEntropyRows), targets, options) with the same bits,
/// but the logits never exist as a whole. They are computed kLinearCrossEntropyRows tokens at a
/// time, once in forward and once more in backward.
///
/// x: [T, H]   weight: [V, H]   targets: int64 [T]   loss: [].  Keeps x, the weight and T
/// logsumexps. Errors as for cross_entropy and linear; they begin with linear_cross_entropy.
/// ValueError for label_smoothing and class_weights. With bfloat16 x and weight, which may be
/// FRACTAL_NZ, logits and loss are float32, and the gradient of the logits is rounded once.
///
/// Method: P.-L. Hsu et al., Liger Kernel, arXiv:2410.10989, which computes the gradients in
/// forward instead, for a cotangent of one.
Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                            const CrossEntropyOptions& options = {});

inline constexpr std::int64_t kLinearCrossEntropyRows = 512;

}  // namespace moegrad::ops
