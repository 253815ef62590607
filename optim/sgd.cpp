// SPDX-License-Identifier: Apache-2.0
#include "optim/sgd.h"

#include <utility>

#include "framework/runtime/error.h"
#include "framework/runtime/parallel_for.h"
#include "optim/grain.h"
#include "optim/optimizer_state.h"

namespace moegrad::optim {
namespace {

template <class T>
struct SgdCoefficients {
  T lr, momentum, weight_decay;
  bool nesterov;
};

/// `b` is empty without momentum.
template <class T>
void sgd_elements(std::span<T> p, std::span<T> b, std::span<const T> g,
                  const SgdCoefficients<T>& c) {
  parallel_for(static_cast<std::int64_t>(p.size()), kGrain,
               [&](std::int64_t begin, std::int64_t end) {
                 T* const __restrict parameter = p.data();
                 T* const __restrict buffer = b.empty() ? nullptr : b.data();
                 const T* const __restrict grad = g.data();
                 for (auto i = begin; i < end; ++i) {
                   // Without decay not even infinity is multiplied by it.
                   const T gradient =
                       c.weight_decay == T{0} ? grad[i] : grad[i] + c.weight_decay * parameter[i];
                   T direction = gradient;
                   if (buffer != nullptr) {
                     buffer[i] = c.momentum * buffer[i] + gradient;
                     direction = c.nesterov ? gradient + c.momentum * buffer[i] : buffer[i];
                   }
                   parameter[i] -= c.lr * direction;
                 }
               });
}

}  // namespace

SGD::SGD(NamedTensors parameters, const Config& config)
    : SGD({ParamGroup{.parameters = std::move(parameters)}}, config) {}

SGD::SGD(std::vector<ParamGroup> groups, const Config& config)
    : Optimizer(with_defaults("SGD", std::move(groups),
                              {.lr = config.lr,
                               .weight_decay = config.weight_decay,
                               .momentum = config.momentum,
                               .nesterov = config.nesterov}),
                config.skip_missing_grad, config.skip_nonfinite_grad) {
  for (const auto& group : this->groups()) {
    check<ValueError>(!*group.nesterov || *group.momentum > 0.0,
                      "SGD: nesterov needs momentum > 0, got ", *group.momentum);
  }
  keep([](const ParamGroup& group, const NamedTensor& parameter) {
    if (*group.momentum == 0.0) return NamedTensors();
    return NamedTensors{{"momentum_buffer", zero_state(parameter.tensor)}};
  });
}

void SGD::apply(Update& update) {
  const auto& group = update.group;
  dispatch_floating(update.parameter.dtype(), [&]<class T>() {
    std::span<T> momentum;
    if (!update.state.empty()) momentum = update.state[0].mutable_data<T>();
    sgd_elements<T>(update.parameter.mutable_data<T>(), momentum, update.grad.data<T>(),
                    {.lr = static_cast<T>(*group.lr),
                     .momentum = static_cast<T>(*group.momentum),
                     .weight_decay = static_cast<T>(*group.weight_decay),
                     .nesterov = *group.nesterov});
  });
}

}  // namespace moegrad::optim
