// SPDX-License-Identifier: Apache-2.0
#include "optim/adagrad.h"

#include <cmath>
#include <span>
#include <utility>

#include "framework/runtime/parallel_for.h"
#include "framework/tensor/fill.h"
#include "optim/grain.h"
#include "optim/optimizer_state.h"

namespace moegrad::optim {
namespace {

template <class T>
void adagrad_elements(std::span<T> p, std::span<T> s, std::span<const T> g, T lr, T weight_decay,
                      T eps) {
  parallel_for(
      static_cast<std::int64_t>(p.size()), kGrain, [&](std::int64_t begin, std::int64_t end) {
        T* const __restrict parameter = p.data();
        T* const __restrict sum = s.data();
        const T* const __restrict grad = g.data();
        for (auto i = begin; i < end; ++i) {
          // Without decay not even infinity is multiplied by it.
          const T gradient = weight_decay == T{0} ? grad[i] : grad[i] + weight_decay * parameter[i];
          sum[i] += gradient * gradient;
          parameter[i] -= lr * (gradient / (std::sqrt(sum[i]) + eps));
        }
      });
}

}  // namespace

Adagrad::Adagrad(NamedTensors parameters, const Config& config)
    : Adagrad({ParamGroup{.parameters = std::move(parameters)}}, config) {}

Adagrad::Adagrad(std::vector<ParamGroup> groups, const Config& config)
    : Optimizer(with_defaults("Adagrad", std::move(groups),
                              {.lr = config.lr,
                               .weight_decay = config.weight_decay,
                               .eps = config.eps,
                               .lr_decay = config.lr_decay,
                               .initial_accumulator_value = config.initial_accumulator_value}),
                config.skip_missing_grad, config.skip_nonfinite_grad) {
  keep([this](const ParamGroup& group, const NamedTensor& parameter) {
    Tensor sum = zero_state(parameter.tensor);
    if (!sum.is_meta()) fill_(sum, *group.initial_accumulator_value);
    return NamedTensors{{"step", one_per_block(parameter)}, {"sum", sum}};
  });
}

void Adagrad::apply(Update& update) {
  const auto& group = update.group;
  const auto t = static_cast<double>(++update.state[0].mutable_data<std::int64_t>()[0]);
  dispatch_floating(update.parameter.dtype(), [&]<class T>() {
    adagrad_elements<T>(update.parameter.mutable_data<T>(), update.state[1].mutable_data<T>(),
                        update.grad.data<T>(),
                        static_cast<T>(*group.lr / (1.0 + (t - 1.0) * *group.lr_decay)),
                        static_cast<T>(*group.weight_decay), static_cast<T>(*group.eps));
  });
}

}  // namespace moegrad::optim
