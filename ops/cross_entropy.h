// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

struct CrossEntropyOptions {
  std::int64_t ignore_index = -100;  // rows with this target are left out everywhere
  /// The sum is divided by it. Set it to the number of valid targets of a whole training step, so
  /// that the gradients of the step's parts add up. Unset: the number of valid targets here.
  std::optional<double> denominator = std::nullopt;
  /// e in [0, 1]: the target is 1 - e of the given class, and e of all classes alike.
  double label_smoothing = 0;
  /// [V], what each class counts; undefined: 1. Without a denominator, the sum is then divided by
  /// the weights of the valid targets. No gradient for them.
  Tensor class_weights = {};
};

/// Negative log-likelihood of softmax(logits):
///
///     loss = 1 / denominator * sum over valid t of (logsumexp_v logits[t, v] - logits[t,
///     targets[t]])
///
/// logits: [T, V]   targets: int64 [T]   loss: [].  With label smoothing e, class weights w and
/// log p = log softmax(logits), a row's loss is
///
///     -(1 - e) w[targets[t]] log p[t, targets[t]] - e / V * sum over v of w[v] log p[t, v]
///
/// Without a valid target the loss and all gradients are 0 (PyTorch gives NaN). Keeps logits and T
/// logsumexps for backward, but no probabilities, unless there is smoothing or weights. Errors:
/// ShapeError and DtypeError; ValueError for a target outside [0, V) that is not ignore_index, for
/// a denominator that is not positive, and for smoothing outside [0, 1].
Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     const CrossEntropyOptions& options = {});

/// The denominator of cross_entropy. Checks targets [T] and options; errors begin with `op`.
double cross_entropy_denominator(std::string_view op, const Tensor& targets, std::int64_t tokens,
                                 std::int64_t vocabulary, const CrossEntropyOptions& options);

/// How many of the int64 targets are not `ignore_index`.
std::int64_t count_targets(const Tensor& targets, std::int64_t ignore_index = -100);

}  // namespace moegrad::ops
