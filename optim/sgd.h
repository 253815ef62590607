// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "optim/optimizer.h"

namespace moegrad::optim {

/// Stochastic gradient descent with momentum, as torch.optim.SGD without dampening:
///
///     g = g + wd p,    b = mu b + g  (b = g at a parameter's first step)
///     p = p - lr b     or, with Nesterov's momentum,     p = p - lr (g + mu b)
class SGD final : public Optimizer {
 public:
  struct Config {
    double lr = 1e-3;
    double momentum = 0.0;
    double weight_decay = 0.0;
    bool nesterov = false;  // needs momentum > 0
    /// As AdamW's option (Note [Blocks without a gradient]).
    RowBlocks skip_missing_grad = {};
  };

  /// One group with the configuration's lr and weight_decay.
  SGD(NamedTensors parameters, const Config& config);
  /// Each group has its own lr and weight_decay, or takes the configuration's.
  SGD(std::vector<ParamGroup> groups, const Config& config);

  /// `momentum_buffer` of each parameter; none without momentum.
  NamedTensors state_dict() const override;
  /// Momentum buffers b in the order of groups and of parameters; empty without momentum. A buffer
  /// of zeros has the same effect as none: mu 0 + g = g.
  NamedTensors& buffers() { return buffers_; }

 private:
  void apply(Update& update) override;
  TensorList state_of(std::size_t index) const override;

  Config config_;
  NamedTensors buffers_;
};

}  // namespace moegrad::optim
