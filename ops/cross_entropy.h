// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "framework/distributed/process_group.h"
#include "framework/tensor/tensor.h"

namespace moegrad::ops {

struct CrossEntropyOptions {
  std::int64_t ignore_index = -100;  // rows with this target are left out everywhere
  /// The sum is divided by it. Set it to the number of valid targets of a whole training step, so
  /// that the gradients of the step's parts add up. Unset: the number of valid targets here, or
  /// the sum of their weights.
  std::optional<double> denominator = std::nullopt;
  /// e in [0, 1]: the target is 1 - e of the given class, and e of all classes alike.
  double label_smoothing = 0;
  /// [V], what each class counts; undefined: 1. No gradient for them. Neither token_weights nor
  /// z_loss_coef go with them.
  Tensor class_weights = {};
  /// w [T], what each token counts, in the dtype of the loss; undefined: 1. No gradient for them.
  Tensor token_weights = {};
  /// c >= 0: draws each logsumexp towards 0, as PaLM does (arXiv:2204.02311).
  double z_loss_coef = 0;
  /// The R ranks that divide the classes: this rank's V are those from rank() V on, of R V.
  /// Null: it has all.
  std::shared_ptr<ProcessGroup> vocabulary = nullptr;
  /// dL/dloss, if it is known before forward: linear_cross_entropy then makes the gradients there.
  /// It changes nothing else.
  std::optional<double> grad_loss = std::nullopt;
};

/// Negative log-likelihood of softmax(logits), with z = logits and lse[t] = logsumexp_v z[t, v]:
///
///     loss = 1 / denominator * sum over valid t of w[t] (
///         lse[t] - (1 - e) z[t, targets[t]] - e / V * sum over v of z[t, v] + c lse[t]^2)
///
/// logits: [T, V]   targets: int64 [T]   loss: [].  By default w = 1 and e = c = 0. With class
/// weights u and log p = log softmax(logits), a row's loss is
///
///     -(1 - e) u[targets[t]] log p[t, targets[t]] - e / V * sum over v of u[v] log p[t, v]
///
/// Where ranks divide the vocabulary (Note [One objective on all ranks]) the loss is alike on all
/// of them, with the bits of one rank where their parts are subtrees (Note [Sums by halving]). Two
/// all-reduces of a few numbers for each token take the place of gathered logits: of the largest
/// logits, then of sums. Class weights cannot be given then.
///
/// Without a valid target the loss and all gradients are 0 (PyTorch gives NaN). Keeps logits and T
/// logsumexps for backward, but no probabilities, unless there are class weights. Errors:
/// ShapeError and DtypeError; ValueError for a target outside [0, V) that is not ignore_index, for
/// a denominator that is not positive, for smoothing outside [0, 1], for a z_loss_coef that is
/// negative or not finite, and for class weights with what does not go with them.
Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     const CrossEntropyOptions& options = {});

/// How many of the int64 targets are not `ignore_index`.
std::int64_t count_targets(const Tensor& targets, std::int64_t ignore_index = -100);

}  // namespace moegrad::ops
