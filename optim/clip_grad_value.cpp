// SPDX-License-Identifier: Apache-2.0
#include "optim/clip_grad_value.h"

#include <cstdint>

#include "framework/runtime/error.h"
#include "framework/runtime/parallel_for.h"
#include "optim/grain.h"
#include "optim/shard_groups.h"

namespace moegrad::optim {

void clip_grad_value(const NamedTensors& parameters, double max_value) {
  check<ValueError>(max_value >= 0.0, "clip_grad_value: max_value must be >= 0, got ", max_value);
  check_not_replaced("clip_grad_value", parameters);
  for (const auto& [name, parameter] : parameters) {
    Tensor grad = parameter.grad();
    if (!grad.defined()) continue;
    dispatch_floating(grad.dtype(), [&]<class T>() {
      const auto values = grad.mutable_data<T>();
      const auto limit = static_cast<T>(max_value);
      parallel_for(grad.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
        for (auto i = begin; i < end; ++i) {
          auto& value = values[static_cast<std::size_t>(i)];
          value = value > limit ? limit : value < -limit ? -limit : value;
        }
      });
    });
  }
}

}  // namespace moegrad::optim
