// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

// Losses, with PyTorch's names and semantics. Operands are float32 or float64 (DtypeError), of the
// shapes in brackets (ShapeError).

/// What becomes of the losses of the elements or rows.
enum class Reduction : std::uint8_t { kNone, kSum, kMean };

/// (input - target)^2.      input, target: one shape
Tensor mse_loss(const Tensor& input, const Tensor& target, Reduction reduction = Reduction::kMean);

/// The loss of logits x for targets y, probabilities in [0, 1] (ValueError):
///
///     -(w y log sigmoid(x) + (1 - y) log(1 - sigmoid(x))) = (1 - y) x + (1 + (w - 1) y) log(1 +
///     e^-x)
///
/// without overflow.      input, target: one shape     pos_weight: w, which repeats to it;
/// undefined: 1. No gradient for target and pos_weight.
Tensor binary_cross_entropy_with_logits(const Tensor& input, const Tensor& target,
                                        const Tensor& pos_weight = {},
                                        Reduction reduction = Reduction::kMean);

struct NllOptions {
  /// [V], of the classes; undefined: 1. The mean divides by the sum of the targets' weights.
  Tensor class_weights = {};
  std::int64_t ignore_index = -100;  // rows with this target count nowhere
  Reduction reduction = Reduction::kMean;
};

/// -w[targets[t]] log_p[t, targets[t]].      log_p: [T, V]   targets: int64 [T], in [0, V) or
/// ignore_index (ValueError). The mean of no valid target is NaN. No gradient for class weights.
/// For logits, ops::cross_entropy is the loss that keeps no probabilities.
Tensor nll_loss(const Tensor& log_p, const Tensor& targets, const NllOptions& options = {});

/// The divergence of q from p, element by element:  p (log p - log q), 0 where p = 0.
///
/// log_q, p: one shape; p in [0, 1] (ValueError), or with `log_target` log p instead. No gradient
/// for p. As in PyTorch, the mean divides by the number of elements; divide the sum by the number
/// of rows for the mean over distributions.
Tensor kl_div(const Tensor& log_q, const Tensor& p, Reduction reduction = Reduction::kMean,
              bool log_target = false);

}  // namespace moegrad::ops
