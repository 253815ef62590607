// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "optim/optimizer.h"

namespace moegrad::optim {

/// RMSprop, as torch.optim.RMSprop:
///
///     g = g + wd p,    v = a v + (1 - a) g^2,    u = g / (sqrt(v) + eps)
///     p = p - lr u     or, with momentum,     b = mu b + u,    p = p - lr b
///
/// Centered, m = a m + (1 - a) g is kept as well, and v - m^2 takes the place of v in u.
///
/// State: `square_avg` (v), with momentum `momentum_buffer` (b), centered `grad_avg` (m).
///
/// Reference: Tieleman & Hinton, lecture 6.5 of "Neural networks for machine learning", 2012;
/// centered: Graves, 2013, https://arxiv.org/abs/1308.0850
class RMSprop final : public Optimizer {
 public:
  struct Config {
    double lr = 1e-2;
    double alpha = 0.99;
    double eps = 1e-8;
    double weight_decay = 0.0;
    double momentum = 0.0;
    bool centered = false;
    /// As AdamW's options.
    RowBlocks skip_missing_grad = {};
    bool skip_nonfinite_grad = false;
  };

  /// One group with the configuration's settings.
  RMSprop(NamedTensors parameters, const Config& config);
  /// Each group has its own settings (lr, weight_decay, alpha, eps, momentum, centered), or takes
  /// the configuration's.
  RMSprop(std::vector<ParamGroup> groups, const Config& config);

 private:
  void apply(Update& update) override;
};

}  // namespace moegrad::optim
