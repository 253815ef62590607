// SPDX-License-Identifier: Apache-2.0
#include "optim/adamw.h"

#include <cmath>
#include <utility>

#include "framework/runtime/error.h"
#include "framework/runtime/parallel_for.h"
#include "framework/tensor/arena.h"
#include "framework/tensor/fill.h"
#include "optim/grain.h"

namespace moegrad::optim {
namespace {

/// The scalars of one step, rounded once to the parameter's dtype.
template <class T>
struct AdamWCoefficients {
  T decay, beta1, one_minus_beta1, beta2, one_minus_beta2, step_size, sqrt_bias_correction2, eps;
};

template <class T>
void step_elements(std::span<T> p, std::span<T> m, std::span<T> v, std::span<const T> g,
                   const AdamWCoefficients<T>& c) {
  parallel_for(static_cast<std::int64_t>(p.size()), kGrain,
               [&](std::int64_t begin, std::int64_t end) {
                 T* const __restrict parameter = p.data();
                 T* const __restrict exp_avg = m.data();
                 T* const __restrict exp_avg_sq = v.data();
                 const T* const __restrict grad = g.data();
                 for (auto i = begin; i < end; ++i) {
                   const T first = exp_avg[i] * c.beta1 + grad[i] * c.one_minus_beta1;
                   const T second = exp_avg_sq[i] * c.beta2 + grad[i] * grad[i] * c.one_minus_beta2;
                   const T denominator = std::sqrt(second) / c.sqrt_bias_correction2 + c.eps;
                   exp_avg[i] = first;
                   exp_avg_sq[i] = second;
                   parameter[i] = parameter[i] * c.decay - c.step_size * (first / denominator);
                 }
               });
}

}  // namespace

AdamW::AdamW(NamedTensors parameters, const Config& config)
    : AdamW({ParamGroup{.parameters = std::move(parameters)}}, config) {}

AdamW::AdamW(std::vector<ParamGroup> groups, const Config& config)
    : Optimizer(with_defaults(std::move(groups), config.lr, config.weight_decay),
                config.skip_missing_grad),
      config_(config) {
  check<ValueError>(0.0 <= config.beta1 && config.beta1 < 1.0,
                    "AdamW: beta1 must be in [0, 1), got ", config.beta1);
  check<ValueError>(0.0 <= config.beta2 && config.beta2 < 1.0,
                    "AdamW: beta2 must be in [0, 1), got ", config.beta2);
  check<ValueError>(config.eps >= 0.0, "AdamW: eps must be >= 0, got ", config.eps);
  const MemoryTagGuard tag(MemoryTag::kOptimizer);
  for (const auto& group : this->groups()) {
    for (const auto& [name, parameter] : group.parameters) {
      states_.push_back({.name = name,
                         .steps = one_per_block(name, parameter),
                         .exp_avg = zero_state(parameter),
                         .exp_avg_sq = zero_state(parameter)});
    }
  }
}

NamedTensors AdamW::state_dict() const {
  NamedTensors state;
  for (const auto& [name, steps, exp_avg, exp_avg_sq] : states_) {
    state.push_back({name + ".step", steps});
    state.push_back({name + ".exp_avg", exp_avg});
    state.push_back({name + ".exp_avg_sq", exp_avg_sq});
  }
  return state;
}

TensorList AdamW::state_of(std::size_t index) const {
  const auto& state = states_[index];
  return {state.steps, state.exp_avg, state.exp_avg_sq};
}

void AdamW::apply(Update& update) {
  auto& [group, parameter, grad, state] = update;
  Tensor &steps = state[0], &exp_avg = state[1], &exp_avg_sq = state[2];
  const auto t = static_cast<double>(++steps.mutable_data<std::int64_t>()[0]);
  dispatch_floating(parameter.dtype(), [&]<class T>() {
    const AdamWCoefficients<T> coefficients = {
        .decay = static_cast<T>(1.0 - *group.lr * *group.weight_decay),
        .beta1 = static_cast<T>(config_.beta1),
        .one_minus_beta1 = static_cast<T>(1.0 - config_.beta1),
        .beta2 = static_cast<T>(config_.beta2),
        .one_minus_beta2 = static_cast<T>(1.0 - config_.beta2),
        .step_size = static_cast<T>(*group.lr / (1.0 - std::pow(config_.beta1, t))),
        .sqrt_bias_correction2 = static_cast<T>(std::sqrt(1.0 - std::pow(config_.beta2, t))),
        .eps = static_cast<T>(config_.eps)};
    step_elements<T>(parameter.mutable_data<T>(), exp_avg.mutable_data<T>(),
                     exp_avg_sq.mutable_data<T>(), grad.data<T>(), coefficients);
  });
}

}  // namespace moegrad::optim
