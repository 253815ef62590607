// SPDX-License-Identifier: Apache-2.0
#include "optim/adam_moments.h"

#include <cmath>
#include <span>
#include <utility>

#include "framework/runtime/math/elementary.h"
#include "framework/runtime/parallel_for.h"
#include "optim/grain.h"
#include "optim/optimizer_state.h"

namespace moegrad::optim {
namespace {

/// The scalars of one step, rounded once to the parameter's dtype.
template <class T>
struct AdamCoefficients {
  T decay;        // of the parameter
  T added_decay;  // of the parameter, added to the gradient
  T beta1, one_minus_beta1, beta2, one_minus_beta2, step_size, sqrt_bias_correction2, eps;
};

/// `max_v` is empty without amsgrad. Where no decay is added, not even infinity is multiplied by
/// it.
template <bool kAmsgrad, bool kAddsDecay, class T>
void adam_elements(std::span<T> p, std::span<T> m, std::span<T> v, std::span<T> max_v,
                   std::span<const T> g, const AdamCoefficients<T>& c) {
  parallel_for(
      static_cast<std::int64_t>(p.size()), kGrain, [&](std::int64_t begin, std::int64_t end) {
        T* const __restrict parameter = p.data();
        T* const __restrict exp_avg = m.data();
        T* const __restrict exp_avg_sq = v.data();
        T* const __restrict max_exp_avg_sq = max_v.data();
        const T* const __restrict grad = g.data();
        for (auto i = begin; i < end; ++i) {
          T gradient = grad[i];
          if constexpr (kAddsDecay) gradient += parameter[i] * c.added_decay;
          const T first = exp_avg[i] * c.beta1 + gradient * c.one_minus_beta1;
          const T second = exp_avg_sq[i] * c.beta2 + gradient * gradient * c.one_minus_beta2;
          T largest = second;
          if constexpr (kAmsgrad) {
            // Like torch.maximum, it keeps a NaN.
            const T before = max_exp_avg_sq[i];
            largest = second < before || before != before ? before : second;
            max_exp_avg_sq[i] = largest;
          }
          const T denominator = std::sqrt(largest) / c.sqrt_bias_correction2 + c.eps;
          exp_avg[i] = first;
          exp_avg_sq[i] = second;
          parameter[i] = parameter[i] * c.decay - c.step_size * (first / denominator);
        }
      });
}

}  // namespace

NamedTensors adam_state(const ParamGroup& group, const Tensor& parameter, Tensor steps) {
  NamedTensors state = {{"step", std::move(steps)},
                        {"exp_avg", zero_state(parameter)},
                        {"exp_avg_sq", zero_state(parameter)}};
  if (*group.amsgrad) state.push_back({"max_exp_avg_sq", zero_state(parameter)});
  return state;
}

void adam_step(const ParamGroup& group, bool decoupled, Tensor& parameter, const Tensor& grad,
               TensorList& state) {
  const double lr = *group.lr, decay = *group.weight_decay;
  const double beta1 = *group.beta1, beta2 = *group.beta2;
  const auto t = static_cast<double>(++state[0].mutable_data<std::int64_t>()[0]);
  dispatch_floating(parameter.dtype(), [&]<class T>() {
    const AdamCoefficients<T> coefficients = {
        .decay = static_cast<T>(decoupled ? 1.0 - lr * decay : 1.0),
        .added_decay = static_cast<T>(decay),
        .beta1 = static_cast<T>(beta1),
        .one_minus_beta1 = static_cast<T>(1.0 - beta1),
        .beta2 = static_cast<T>(beta2),
        .one_minus_beta2 = static_cast<T>(1.0 - beta2),
        .step_size = static_cast<T>(lr / (1.0 - math::pow(beta1, t))),
        .sqrt_bias_correction2 = static_cast<T>(std::sqrt(1.0 - math::pow(beta2, t))),
        .eps = static_cast<T>(*group.eps)};
    const auto run = [&]<bool kAmsgrad, bool kAddsDecay>() {
      std::span<T> max_exp_avg_sq;
      if constexpr (kAmsgrad) max_exp_avg_sq = state[3].mutable_data<T>();
      adam_elements<kAmsgrad, kAddsDecay, T>(parameter.mutable_data<T>(),
                                             state[1].mutable_data<T>(), state[2].mutable_data<T>(),
                                             max_exp_avg_sq, grad.data<T>(), coefficients);
    };
    const bool amsgrad = *group.amsgrad, adds_decay = !decoupled && decay != 0.0;
    if (amsgrad && adds_decay) run.template operator()<true, true>();
    if (amsgrad && !adds_decay) run.template operator()<true, false>();
    if (!amsgrad && adds_decay) run.template operator()<false, true>();
    if (!amsgrad && !adds_decay) run.template operator()<false, false>();
  });
}

}  // namespace moegrad::optim
