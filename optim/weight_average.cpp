// SPDX-License-Identifier: Apache-2.0
#include "optim/weight_average.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "framework/runtime/error.h"
#include "framework/runtime/parallel_for.h"
#include "framework/tensor/arena.h"
#include "framework/tensor/fill.h"
#include "optim/grain.h"
#include "optim/optimizer_state.h"
#include "optim/parameter_checks.h"
#include "optim/shard_groups.h"

namespace moegrad::optim {

WeightAverage::WeightAverage(NamedTensors parameters, double decay)
    : parameters_(std::move(parameters)), decay_(decay) {
  check<ValueError>(0.0 <= decay && decay < 1.0, "WeightAverage: decay must be in [0, 1), got ",
                    decay);
  check_parameters("WeightAverage", parameters_);
  check_not_replaced("WeightAverage", parameters_);
  const MemoryTagGuard tag(MemoryTag::kOptimizer);
  for (const auto& [name, parameter] : parameters_) {
    averages_.push_back(zero_state(parameter));
    copy_(averages_.back(), parameter);
  }
}

void WeightAverage::check_parameters_unchanged() const {
  check_not_replaced("WeightAverage", parameters_);
  for (std::size_t i = 0; i < averages_.size(); ++i) {
    const auto& [name, parameter] = parameters_[i];
    check<DtypeError>(parameter.dtype() == averages_[i].dtype(), "WeightAverage: '", name,
                      "' must be ", averages_[i].dtype(), " as when it was made, got ",
                      parameter.dtype(), "; make it after the module has been converted");
  }
}

void WeightAverage::update() {
  check(!swapped_,
        "WeightAverage: update() must find the weights in their place, got the averages "
        "there; call swap() again first");
  check_parameters_unchanged();
  for (std::size_t i = 0; i < averages_.size(); ++i) {
    const Tensor& parameter = parameters_[i].tensor;
    dispatch_floating(parameter.dtype(), [&]<class T>() {
      const auto w = parameter.data<T>();
      const auto a = averages_[i].mutable_data<T>();
      const auto rest = static_cast<T>(1.0 - decay_);
      parallel_for(parameter.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
        for (auto k = static_cast<std::size_t>(begin); k < static_cast<std::size_t>(end); ++k) {
          a[k] += rest * (w[k] - a[k]);
        }
      });
    });
  }
}

void WeightAverage::swap() {
  check_parameters_unchanged();
  swapped_ = !swapped_;
  for (std::size_t i = 0; i < averages_.size(); ++i) {
    Tensor& parameter = parameters_[i].tensor;
    dispatch_floating(parameter.dtype(), [&]<class T>() {
      std::ranges::swap_ranges(parameter.mutable_data<T>(), averages_[i].mutable_data<T>());
    });
  }
}

NamedTensors WeightAverage::state_dict() const {
  NamedTensors state;
  for (std::size_t i = 0; i < averages_.size(); ++i) {
    state.push_back({parameters_[i].name + ".ema", averages_[i]});
  }
  return state;
}

void WeightAverage::load_state_dict(const NamedTensors& state) {
  load_state("WeightAverage load_state_dict", state_dict(), state);
}

}  // namespace moegrad::optim
