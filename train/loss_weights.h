// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "framework/tensor/tensor.h"
#include "train/data/micro_batch.h"

namespace moegrad::training {

/// What a target counts in the loss, by the number of targets n of its document.
enum class LossWeights : std::uint8_t {
  kToken,     // 1: long documents count more
  kSequence,  // 1 / n: all documents count alike
  kSqrt,      // n^-0.5: between the two
};

/// The weights [T] of the tokens of a micro-batch, 0 for those without a target.
///
/// A part's loss is its sum of weight times -log p, divided by the sum of the weights of all
/// micro-batches and ranks of the step (StepPlan::sum() of sum_of_target_weights()). So the losses
/// and the gradients of parts add up. A piece of a cut document counts as a document.
Tensor target_weights(LossWeights weights, const MicroBatch& batch, Dtype dtype);

/// The sum of the weights, unrounded: exactly the number of targets for kToken.
double sum_of_target_weights(LossWeights weights, const MicroBatch& batch);

}  // namespace moegrad::training
