// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "optim/optimizer.h"

namespace moegrad::optim {

/// Stochastic gradient descent with momentum, as torch.optim.SGD without dampening:
///
///     g = g + wd p,    b = mu b + g  (b = g at a parameter's first step)
///     p = p - lr b     or, with Nesterov's momentum,     p = p - lr (g + mu b)
///
/// State: `momentum_buffer` (b) of each parameter in a group with momentum. A buffer of zeros has
/// the same effect as none: mu 0 + g = g.
class SGD final : public Optimizer {
 public:
  struct Config {
    double lr = 1e-3;
    double momentum = 0.0;
    double weight_decay = 0.0;
    bool nesterov = false;  // needs momentum > 0
    /// As AdamW's options.
    RowBlocks skip_missing_grad = {};
    bool skip_nonfinite_grad = false;
  };

  /// One group with the configuration's settings.
  SGD(NamedTensors parameters, const Config& config);
  /// Each group has its own settings (lr, weight_decay, momentum, nesterov), or takes the
  /// configuration's.
  SGD(std::vector<ParamGroup> groups, const Config& config);

  /// The momentum buffers that there are, in the order of groups and of parameters.
  NamedTensors buffers() const { return state_dict(); }

 private:
  void apply(Update& update) override;
};

}  // namespace moegrad::optim
