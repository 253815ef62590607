// SPDX-License-Identifier: Apache-2.0
#include "optim/lion.h"

#include <span>
#include <utility>

#include "framework/runtime/parallel_for.h"
#include "optim/grain.h"
#include "optim/optimizer_state.h"

namespace moegrad::optim {
namespace {

template <class T>
struct LionCoefficients {
  T lr, decay, beta1, one_minus_beta1, beta2, one_minus_beta2;
};

template <class T>
T sign(T value) {
  return value > T{0} ? T{1} : value < T{0} ? T{-1} : value;
}

template <class T>
void lion_elements(std::span<T> p, std::span<T> m, std::span<const T> g,
                   const LionCoefficients<T>& c) {
  parallel_for(static_cast<std::int64_t>(p.size()), kGrain,
               [&](std::int64_t begin, std::int64_t end) {
                 T* const __restrict parameter = p.data();
                 T* const __restrict exp_avg = m.data();
                 const T* const __restrict grad = g.data();
                 for (auto i = begin; i < end; ++i) {
                   const T direction = exp_avg[i] * c.beta1 + grad[i] * c.one_minus_beta1;
                   parameter[i] = parameter[i] * c.decay - c.lr * sign(direction);
                   exp_avg[i] = exp_avg[i] * c.beta2 + grad[i] * c.one_minus_beta2;
                 }
               });
}

}  // namespace

Lion::Lion(NamedTensors parameters, const Config& config)
    : Lion({ParamGroup{.parameters = std::move(parameters)}}, config) {}

Lion::Lion(std::vector<ParamGroup> groups, const Config& config)
    : Optimizer(with_defaults("Lion", std::move(groups),
                              {.lr = config.lr,
                               .weight_decay = config.weight_decay,
                               .beta1 = config.beta1,
                               .beta2 = config.beta2}),
                config.skip_missing_grad, config.skip_nonfinite_grad) {
  keep([](const ParamGroup& /*group*/, const NamedTensor& parameter) {
    return NamedTensors{{"exp_avg", zero_state(parameter.tensor)}};
  });
}

void Lion::apply(Update& update) {
  const auto& group = update.group;
  dispatch_floating(update.parameter.dtype(), [&]<class T>() {
    lion_elements<T>(update.parameter.mutable_data<T>(), update.state[0].mutable_data<T>(),
                     update.grad.data<T>(),
                     {.lr = static_cast<T>(*group.lr),
                      .decay = static_cast<T>(1.0 - *group.lr * *group.weight_decay),
                      .beta1 = static_cast<T>(*group.beta1),
                      .one_minus_beta1 = static_cast<T>(1.0 - *group.beta1),
                      .beta2 = static_cast<T>(*group.beta2),
                      .one_minus_beta2 = static_cast<T>(1.0 - *group.beta2)});
  });
}

}  // namespace moegrad::optim
