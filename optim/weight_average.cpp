// SPDX-License-Identifier: Apache-2.0
#include "optim/weight_average.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "framework/runtime/arena.h"
#include "framework/runtime/error.h"
#include "framework/runtime/parallel_for.h"
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
  check_in_place("the constructor");
  const MemoryTagGuard tag(MemoryTag::kOptimizer);
  for (const auto& [name, parameter] : parameters_) {
    averages_.push_back(zero_state(parameter));
    copy_(averages_.back(), parameter);
  }
}

WeightAverage::~WeightAverage() {
  if (swapped_) mark_swapped(false);
}

void WeightAverage::check_in_place(std::string_view call) const {
  const bool average = swapped_ || std::ranges::any_of(parameters_, [](const NamedTensor& each) {
                         return has_mark(each.tensor, kHoldsAverage);
                       });
  check(!average, "WeightAverage: ", call,
        " must find the weights in their place, got the averages there; call swap() again first");
}

// An optimizer must not step from the averages.
void WeightAverage::mark_swapped(bool swapped) {
  swapped_ = swapped;
  for (const auto& [name, parameter] : parameters_) set_mark(parameter, kHoldsAverage, swapped);
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
  check_in_place("update()");
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
  if (!swapped_) check_in_place("swap()");  // another's averages
  mark_swapped(!swapped_);
  for (std::size_t i = 0; i < averages_.size(); ++i) {
    Tensor& parameter = parameters_[i].tensor;
    dispatch_floating(parameter.dtype(), [&]<class T>() {
      std::ranges::swap_ranges(parameter.mutable_data<T>(), averages_[i].mutable_data<T>());
    });
  }
}

NamedTensors WeightAverage::state_dict() const {
  check_in_place("state_dict()");
  NamedTensors state;
  for (std::size_t i = 0; i < averages_.size(); ++i) {
    state.push_back({parameters_[i].name + ".ema", averages_[i]});
  }
  return state;
}

void WeightAverage::load_state_dict(const NamedTensors& state) {
  check_in_place("load_state_dict()");
  load_state("WeightAverage load_state_dict", state_dict(), state);
}

}  // namespace moegrad::optim
