// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "optim/optimizer.h"

namespace moegrad::optim {

/// Adam, as torch.optim.Adam: AdamW's formulas without the decay of p, for the gradient g + wd p.
///
/// State: `step`, `exp_avg`, `exp_avg_sq`, and with amsgrad `max_exp_avg_sq`.
///
/// Reference: Kingma & Ba, 2015, https://arxiv.org/abs/1412.6980
class Adam final : public Optimizer {
 public:
  struct Config {
    double lr = 1e-3;
    double beta1 = 0.9;
    double beta2 = 0.999;
    double eps = 1e-8;
    double weight_decay = 0.0;
    bool amsgrad = false;
    /// As AdamW's options.
    RowBlocks skip_missing_grad = {};
    bool skip_nonfinite_grad = false;
  };

  /// One group with the configuration's settings.
  Adam(NamedTensors parameters, const Config& config);
  /// Each group has its own settings (lr, weight_decay, beta1, beta2, eps, amsgrad), or takes the
  /// configuration's.
  Adam(std::vector<ParamGroup> groups, const Config& config);

 private:
  void apply(Update& update) override;
};

}  // namespace moegrad::optim
