// SPDX-License-Identifier: Apache-2.0
#include "optim/adam.h"

#include <utility>

#include "optim/adam_moments.h"

namespace moegrad::optim {

Adam::Adam(NamedTensors parameters, const Config& config)
    : Adam({ParamGroup{.parameters = std::move(parameters)}}, config) {}

Adam::Adam(std::vector<ParamGroup> groups, const Config& config)
    : Optimizer(with_defaults("Adam", std::move(groups),
                              {.lr = config.lr,
                               .weight_decay = config.weight_decay,
                               .beta1 = config.beta1,
                               .beta2 = config.beta2,
                               .eps = config.eps,
                               .amsgrad = config.amsgrad}),
                config.skip_missing_grad, config.skip_nonfinite_grad) {
  keep([this](const ParamGroup& group, const NamedTensor& parameter) {
    return adam_state(group, parameter.tensor, one_per_block(parameter));
  });
}

void Adam::apply(Update& update) {
  adam_step(update.group, /*decoupled=*/false, update.parameter, update.grad, update.state);
}

}  // namespace moegrad::optim
