// SPDX-License-Identifier: Apache-2.0
#include "optim/adamw.h"

#include <cstddef>
#include <utility>

#include "optim/adam_moments.h"

namespace moegrad::optim {

AdamW::AdamW(NamedTensors parameters, const Config& config)
    : AdamW({ParamGroup{.parameters = std::move(parameters)}}, config) {}

AdamW::AdamW(std::vector<ParamGroup> groups, const Config& config)
    : Optimizer(with_defaults("AdamW", std::move(groups),
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

std::vector<AdamW::State> AdamW::states() const {
  std::vector<State> states;
  for (const auto& group : groups()) {
    for (const auto& [name, parameter] : group.parameters) {
      const auto i = states.size();
      states.push_back({.name = name,
                        .steps = kept(i, "step"),
                        .exp_avg = kept(i, "exp_avg"),
                        .exp_avg_sq = kept(i, "exp_avg_sq"),
                        .max_exp_avg_sq = kept(i, "max_exp_avg_sq")});
    }
  }
  return states;
}

void AdamW::apply(Update& update) {
  adam_step(update.group, /*decoupled=*/true, update.parameter, update.grad, update.state);
}

}  // namespace moegrad::optim
