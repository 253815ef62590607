// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "optim/optimizer.h"

namespace moegrad::optim {

/// What Adam and AdamW share: all but where the weight decay wd acts. Decoupled (AdamW), it shrinks
/// p; otherwise (Adam) it is added to the gradient. For step t = 1, 2, ... of a parameter
///
///     p = p (1 - lr wd)   or   g = g + wd p
///     m = b1 m + (1 - b1) g,    v = b2 v + (1 - b2) g^2
///     p = p - lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)
///
/// in one pass over each parameter, in the parameter's dtype. With amsgrad the largest v so far
/// takes the place of v in the last line. Steps are counted per parameter, or per row block for
/// parameters in skip_missing_grad. Without a gradient, moments and count stay.
///
/// State: `step`, `exp_avg` (m), `exp_avg_sq` (v), and with amsgrad `max_exp_avg_sq`.
template <bool kDecoupled>
class AdamRule : public Optimizer {
 public:
  struct Config {
    double lr = 1e-3;
    double beta1 = 0.9;
    double beta2 = 0.999;
    double eps = 1e-8;
    double weight_decay = kDecoupled ? 0.01 : 0.0;
    bool amsgrad = false;
    /// Row blocks, by parameter name, that a step leaves alone if they have no gradient (Note
    /// [Blocks without a gradient]). For other parameters a gradient of zeros is an ordinary one.
    RowBlocks skip_missing_grad = {};
    bool skip_nonfinite_grad = false;  // Optimizer::step()
  };
  /// The state of one parameter.
  struct State {
    std::string name;       // of the parameter
    Tensor steps;           // int64, one per row block, so usually [1]; the same on all ranks;
                            // undefined, as all below, if the parameter has been frozen all along
    Tensor exp_avg;         // m
    Tensor exp_avg_sq;      // v
    Tensor max_exp_avg_sq;  // undefined without amsgrad
  };

  /// One group with the configuration's settings.
  AdamRule(NamedTensors parameters, const Config& config);
  /// Each group has its own settings (lr, weight_decay, beta1, beta2, eps, amsgrad), or takes the
  /// configuration's.
  AdamRule(std::vector<ParamGroup> groups, const Config& config);

  /// The states in the order of groups and of parameters within them.
  std::vector<State> states() const;

 private:
  void apply(Update& update) override;
};
extern template class AdamRule<false>;
extern template class AdamRule<true>;

/// Adam, as torch.optim.Adam.
///
/// Reference: Kingma & Ba, 2015, https://arxiv.org/abs/1412.6980
class Adam final : public AdamRule</*kDecoupled=*/false> {
 public:
  using AdamRule::AdamRule;
};

}  // namespace moegrad::optim
