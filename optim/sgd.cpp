// SPDX-License-Identifier: Apache-2.0
#include "optim/sgd.h"

#include <utility>

#include "framework/runtime/error.h"
#include "framework/runtime/parallel_for.h"
#include "framework/tensor/arena.h"
#include "framework/tensor/fill.h"
#include "optim/grain.h"

namespace moegrad::optim {
namespace {

template <class T>
struct SgdCoefficients {
  T lr, momentum, weight_decay;
  bool nesterov;
};

/// `b` is empty without momentum.
template <class T>
void step_elements(std::span<T> p, std::span<T> b, std::span<const T> g,
                   const SgdCoefficients<T>& c) {
  parallel_for(static_cast<std::int64_t>(p.size()), kGrain,
               [&](std::int64_t begin, std::int64_t end) {
                 T* const __restrict parameter = p.data();
                 T* const __restrict buffer = b.empty() ? nullptr : b.data();
                 const T* const __restrict grad = g.data();
                 for (auto i = begin; i < end; ++i) {
                   const T gradient = grad[i] + c.weight_decay * parameter[i];
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
    : Optimizer(with_defaults(std::move(groups), config.lr, config.weight_decay),
                config.skip_missing_grad),
      config_(config) {
  check<ValueError>(config.momentum >= 0.0, "SGD: momentum must be >= 0, got ", config.momentum);
  check<ValueError>(!config.nesterov || config.momentum > 0.0,
                    "SGD: nesterov needs momentum > 0, got ", config.momentum);
  if (config.momentum == 0.0) return;
  const MemoryTagGuard tag(MemoryTag::kOptimizer);
  for (const auto& group : this->groups()) {
    for (const auto& [name, parameter] : group.parameters) {
      buffers_.push_back({name, zero_state(parameter)});
    }
  }
}

NamedTensors SGD::state_dict() const {
  NamedTensors state;
  for (const auto& [name, buffer] : buffers_) state.push_back({name + ".momentum_buffer", buffer});
  return state;
}

TensorList SGD::state_of(std::size_t index) const {
  return buffers_.empty() ? TensorList() : TensorList{buffers_[index].tensor};
}

void SGD::apply(Update& update) {
  auto& [group, parameter, grad, state] = update;
  dispatch_floating(parameter.dtype(), [&]<class T>() {
    std::span<T> momentum;
    if (!state.empty()) momentum = state[0].mutable_data<T>();
    step_elements<T>(parameter.mutable_data<T>(), momentum, grad.data<T>(),
                     {.lr = static_cast<T>(*group.lr),
                      .momentum = static_cast<T>(config_.momentum),
                      .weight_decay = static_cast<T>(*group.weight_decay),
                      .nesterov = config_.nesterov});
  });
}

}  // namespace moegrad::optim
