// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "optim/optimizer.h"

namespace moegrad::optim {

/// Adagrad, as torch.optim.Adagrad. For step t = 1, 2, ... of a parameter
///
///     g = g + wd p,    s = s + g^2,    p = p - lr / (1 + (t - 1) lr_decay) * g / (sqrt(s) + eps)
///
/// State: `step`, and `sum` (s), which begins as initial_accumulator_value.
///
/// Reference: Duchi, Hazan & Singer, JMLR 12, 2011
class Adagrad final : public Optimizer {
 public:
  struct Config {
    double lr = 1e-2;
    double lr_decay = 0.0;
    double weight_decay = 0.0;
    double initial_accumulator_value = 0.0;
    double eps = 1e-10;
    /// As AdamW's options.
    RowBlocks skip_missing_grad = {};
    bool skip_nonfinite_grad = false;
  };

  /// One group with the configuration's settings.
  Adagrad(NamedTensors parameters, const Config& config);
  /// Each group has its own settings (lr, weight_decay, eps, lr_decay, initial_accumulator_value),
  /// or takes the configuration's.
  Adagrad(std::vector<ParamGroup> groups, const Config& config);

 private:
  void apply(Update& update) override;
};

}  // namespace moegrad::optim
