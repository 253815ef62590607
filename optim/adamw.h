// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "optim/optimizer.h"

namespace moegrad::optim {

/// Adam with decoupled weight decay, as torch.optim.AdamW. For step t = 1, 2, ... of a parameter
///
///     p = p (1 - lr wd)
///     m = b1 m + (1 - b1) g,    v = b2 v + (1 - b2) g^2
///     p = p - lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)
///
/// in one pass over each parameter, in the parameter's dtype. Steps are counted per parameter, or
/// per row block for parameters in skip_missing_grad. Without a gradient, moments and count stay.
///
/// Reference: Loshchilov & Hutter, 2019, https://arxiv.org/abs/1711.05101
class AdamW final : public Optimizer {
 public:
  struct Config {
    double lr = 1e-3;
    double beta1 = 0.9;
    double beta2 = 0.999;
    double eps = 1e-8;
    double weight_decay = 0.01;
    /// Row blocks, by parameter name, that a step leaves alone if they have no gradient (Note
    /// [Blocks without a gradient]). For other parameters a gradient of zeros is an ordinary one.
    RowBlocks skip_missing_grad = {};
  };
  /// The state of one parameter.
  struct State {
    std::string name;   // of the parameter
    Tensor steps;       // int64, one per row block, so usually [1]; the same on all ranks
    Tensor exp_avg;     // m
    Tensor exp_avg_sq;  // v
  };

  /// One group with the configuration's lr and weight_decay.
  AdamW(NamedTensors parameters, const Config& config);
  /// Each group has its own lr and weight_decay, or takes the configuration's.
  AdamW(std::vector<ParamGroup> groups, const Config& config);

  /// `step`, `exp_avg` and `exp_avg_sq` of each parameter.
  NamedTensors state_dict() const override;
  /// The states in the order of groups and of parameters within them.
  std::vector<State>& states() { return states_; }

 private:
  void apply(Update& update) override;
  TensorList state_of(std::size_t index) const override;

  Config config_;
  std::vector<State> states_;
};

}  // namespace moegrad::optim
