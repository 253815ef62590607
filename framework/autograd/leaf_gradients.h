// SPDX-License-Identifier: Apache-2.0
#pragma once

// Internal: what the accumulators of a backward have in common.

#include <optional>
#include <utility>

#include "framework/autograd/placed_sum.h"
#include "framework/tensor/gradient_accumulator.h"
#include "framework/tensor/tensor.h"

namespace moegrad {

/// The gradients that come to one leaf. They are added to `target` in order of arrival; those whose
/// places must be kept apart, or whose sum a hook of the leaf wants, wait for complete().
class GradientArrivals {
 public:
  explicit GradientArrivals(std::optional<Dtype> node_dtype = std::nullopt)
      : waiting_(node_dtype) {}

  void add(const Tensor& leaf, Tensor grad, const GradientPlace& place, Tensor& target);
  /// The sums of the micro-batches that waited, after the leaf's hooks; empty if none did.
  TensorList complete(const Tensor& leaf);

 private:
  PlacedSum waiting_;
};

/// Adds to grad(): what a leaf without an accumulator gets.
class AddToGrad final : public GradientAccumulator {
 public:
  explicit AddToGrad(Tensor leaf) : leaf_(std::move(leaf)) {}
  void add(Tensor grad, const GradientPlace& place) override;
  void complete() override;

 private:
  Tensor leaf_;
  GradientArrivals arrivals_;
};

void run_post_accumulate_hooks(const Tensor& leaf);

}  // namespace moegrad
