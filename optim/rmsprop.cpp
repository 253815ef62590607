// SPDX-License-Identifier: Apache-2.0
#include "optim/rmsprop.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "framework/runtime/parallel_for.h"
#include "optim/grain.h"
#include "optim/optimizer_state.h"

namespace moegrad::optim {
namespace {

template <class T>
struct RmspropCoefficients {
  T lr, alpha, one_minus_alpha, eps, weight_decay, momentum;
};

/// `b` is empty without momentum, `m` unless centered.
template <class T>
void rmsprop_elements(std::span<T> p, std::span<T> v, std::span<T> b, std::span<T> m,
                      std::span<const T> g, const RmspropCoefficients<T>& c) {
  parallel_for(
      static_cast<std::int64_t>(p.size()), kGrain, [&](std::int64_t begin, std::int64_t end) {
        T* const __restrict parameter = p.data();
        T* const __restrict square_avg = v.data();
        T* const __restrict buffer = b.empty() ? nullptr : b.data();
        T* const __restrict grad_avg = m.empty() ? nullptr : m.data();
        const T* const __restrict grad = g.data();
        for (auto i = begin; i < end; ++i) {
          // Without decay not even infinity is multiplied by it.
          const T gradient =
              c.weight_decay == T{0} ? grad[i] : grad[i] + c.weight_decay * parameter[i];
          square_avg[i] = square_avg[i] * c.alpha + gradient * gradient * c.one_minus_alpha;
          T variance = square_avg[i];
          if (grad_avg != nullptr) {
            grad_avg[i] = grad_avg[i] * c.alpha + gradient * c.one_minus_alpha;
            // Rounding may leave less than nothing of equal gradients.
            variance = std::max(variance - grad_avg[i] * grad_avg[i], T(0));
          }
          T update = gradient / (std::sqrt(variance) + c.eps);
          if (buffer != nullptr) update = buffer[i] = c.momentum * buffer[i] + update;
          parameter[i] -= c.lr * update;
        }
      });
}

}  // namespace

RMSprop::RMSprop(NamedTensors parameters, const Config& config)
    : RMSprop({ParamGroup{.parameters = std::move(parameters)}}, config) {}

RMSprop::RMSprop(std::vector<ParamGroup> groups, const Config& config)
    : Optimizer(with_defaults("RMSprop", std::move(groups),
                              {.lr = config.lr,
                               .weight_decay = config.weight_decay,
                               .eps = config.eps,
                               .momentum = config.momentum,
                               .alpha = config.alpha,
                               .centered = config.centered}),
                config.skip_missing_grad, config.skip_nonfinite_grad) {
  keep([](const ParamGroup& group, const NamedTensor& parameter) {
    NamedTensors state = {{"square_avg", zero_state(parameter.tensor)}};
    if (*group.momentum > 0.0) state.push_back({"momentum_buffer", zero_state(parameter.tensor)});
    if (*group.centered) state.push_back({"grad_avg", zero_state(parameter.tensor)});
    return state;
  });
}

void RMSprop::apply(Update& update) {
  const auto& group = update.group;
  dispatch_floating(update.parameter.dtype(), [&]<class T>() {
    std::span<T> buffer, grad_avg;
    if (*group.momentum > 0.0) buffer = update.state[1].mutable_data<T>();
    if (*group.centered) grad_avg = update.state.back().mutable_data<T>();
    rmsprop_elements<T>(update.parameter.mutable_data<T>(), update.state[0].mutable_data<T>(),
                        buffer, grad_avg, update.grad.data<T>(),
                        {.lr = static_cast<T>(*group.lr),
                         .alpha = static_cast<T>(*group.alpha),
                         .one_minus_alpha = static_cast<T>(1.0 - *group.alpha),
                         .eps = static_cast<T>(*group.eps),
                         .weight_decay = static_cast<T>(*group.weight_decay),
                         .momentum = static_cast<T>(*group.momentum)});
  });
}

}  // namespace moegrad::optim
