// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/tensor/tensor.h"
#include "optim/param_group.h"

namespace moegrad::optim {

// Adam's rule, for the optimizers that have it.

/// The settings of groups that have none of their own, from the configuration of such an optimizer.
template <class Config>
ParamGroup adam_settings(const Config& config) {
  return {.lr = config.lr,
          .weight_decay = config.weight_decay,
          .beta1 = config.beta1,
          .beta2 = config.beta2,
          .eps = config.eps,
          .amsgrad = config.amsgrad};
}

/// What the rule keeps of a parameter: `steps` as `step`, exp_avg, exp_avg_sq, and in a group with
/// amsgrad max_exp_avg_sq.
NamedTensors adam_state(const ParamGroup& group, const Tensor& parameter, Tensor steps);

/// One step in one pass over `parameter`, or over a row block of it and of its state, with the
/// group's lr, weight_decay, beta1, beta2 and eps. The weight decay is decoupled (AdamW), or added
/// to the gradient (Adam).
void adam_step(const ParamGroup& group, bool decoupled, Tensor& parameter, const Tensor& grad,
               TensorList& state);

}  // namespace moegrad::optim
