// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/tensor/tensor.h"
#include "ops/cross_entropy.h"

namespace moegrad::ops {

/// cross_entropy(linear(x, weight, kLinearCrossEntropyRows), targets, options) with the same bits,
/// but the logits never exist as a whole. They are computed kLinearCrossEntropyRows tokens at a
/// time, in one of two ways:
///
/// With options.grad_loss, once. Forward makes the gradients of the inputs that need one, for that
/// dL/dloss, piece by piece, and keeps these alone. Backward returns them as they are, or, if it
/// is given another dL/dloss, times dL/dloss / grad_loss, which is rounded once more. It is
/// rounded to the dtype of the loss first. Besides its results the op takes what a piece needs,
/// however many tokens there are.
///
/// Otherwise twice, in forward and once more in backward. Keeps x, the weight and T logsumexps.
///
/// x: [T, H]   weight: [V, H]   targets: int64 [T]   loss: [].  Errors as for cross_entropy and
/// linear; they begin with linear_cross_entropy. ValueError for class_weights, and for a grad_loss
/// that is 0 or not finite.
///
/// Where ranks divide the vocabulary (options.vocabulary), weight has this rank's rows, and x is
/// alike on all of them. The gradient of x is summed over them where it is made, so all must need
/// it, or none. With `divided_rows` each has its part of the rows of x [T / R, H], which are
/// gathered where logits are computed. With bfloat16 x and weight, which may be FRACTAL_NZ, logits
/// and loss are float32, and the gradient of the logits is rounded once.
///
/// Method: P.-L. Hsu et al., Liger Kernel, arXiv:2410.10989, for a cotangent of one.
Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                            const CrossEntropyOptions& options = {}, bool divided_rows = false);

inline constexpr std::int64_t kLinearCrossEntropyRows = 512;

}  // namespace moegrad::ops
