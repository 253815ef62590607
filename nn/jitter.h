// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "nn/module.h"

namespace moegrad::nn {

/// While it is_training(): ops::jitter with the seed, the step and the ids of the DropoutIdsGuard
/// around it and its own path, as Dropout. Otherwise y = x.      x, y: [T, ...]
///
/// Mixtral's router_jitter_noise: what a mixture of experts and its router see is varied a little.
/// Errors as Dropout; ValueError unless noise is in [0, 1).
class Jitter final : public Callable<Jitter> {
 public:
  struct Config {
    double noise = 0;
  };

  explicit Jitter(const Config& config);

  Tensor forward(const Tensor& x);

 private:
  double noise_;
};

}  // namespace moegrad::nn
