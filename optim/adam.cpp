// SPDX-License-Identifier: Apache-2.0
#include "optim/adam.h"

#include <utility>

#include "optim/adam_moments.h"

namespace moegrad::optim {

template <bool kDecoupled>
AdamRule<kDecoupled>::AdamRule(NamedTensors parameters, const Config& config)
    : AdamRule({ParamGroup{.parameters = std::move(parameters)}}, config) {}

template <bool kDecoupled>
AdamRule<kDecoupled>::AdamRule(std::vector<ParamGroup> groups, const Config& config)
    : Optimizer(
          with_defaults(kDecoupled ? "AdamW" : "Adam", std::move(groups), adam_settings(config)),
          config.skip_missing_grad, config.skip_nonfinite_grad) {
  keep([this](const ParamGroup& group, const NamedTensor& parameter) {
    return adam_state(group, parameter.tensor, one_per_block(parameter));
  });
}

template <bool kDecoupled>
auto AdamRule<kDecoupled>::states() const -> std::vector<State> {
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

template <bool kDecoupled>
void AdamRule<kDecoupled>::apply(Update& update) {
  adam_step(update.group, kDecoupled, update.parameter, update.grad, update.state);
}

template class AdamRule<false>;
template class AdamRule<true>;

}  // namespace moegrad::optim
