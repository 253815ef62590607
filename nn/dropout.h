// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "nn/module.h"
#include "ops/attention.h"

namespace moegrad::nn {

/// While it is_training(): ops::dropout with the seed, the step and the ids of the DropoutIdsGuard
/// around it (Note [Dropout masks]) and its own path. Otherwise y = x.      x, y: [T, ...]
///
/// Two calls of one module in a step drop the same elements, unless the guard around the second has
/// another DropoutIds::draw; use a module for each place. Two Dropouts that no module has
/// registered drop the same, too, since neither has a path. Error in training without a guard, and
/// if a module calls it that has not registered it. ValueError unless p is in [0, 1).
class Dropout final : public Callable<Dropout> {
 public:
  struct Config {
    double p = 0.5;
  };

  explicit Dropout(const Config& config);

  Tensor forward(const Tensor& x);

 private:
  double p_;
};

/// What ops::attention drops with probability p, called in the forward of `module`: nothing unless
/// the module is_training(). Errors as Dropout.
std::optional<ops::AttentionOptions::Dropout> attention_dropout(const Module& module, double p);

}  // namespace moegrad::nn
