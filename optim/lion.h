// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "optim/optimizer.h"

namespace moegrad::optim {

/// Lion: the sign of a momentum, with decoupled weight decay:
///
///     p = p (1 - lr wd) - lr sign(b1 m + (1 - b1) g),    m = b2 m + (1 - b2) g
///
/// with sign(0) = 0. A NaN stays a NaN.
///
/// State: `exp_avg` (m).
///
/// Reference: Chen et al., 2023, https://arxiv.org/abs/2302.06675
class Lion final : public Optimizer {
 public:
  struct Config {
    double lr = 1e-4;
    double beta1 = 0.9;
    double beta2 = 0.99;
    double weight_decay = 0.0;
    /// As AdamW's options.
    RowBlocks skip_missing_grad = {};
    bool skip_nonfinite_grad = false;
  };

  /// One group with the configuration's settings.
  Lion(NamedTensors parameters, const Config& config);
  /// Each group has its own settings (lr, weight_decay, beta1, beta2), or takes the
  /// configuration's.
  Lion(std::vector<ParamGroup> groups, const Config& config);

 private:
  void apply(Update& update) override;
};

}  // namespace moegrad::optim
