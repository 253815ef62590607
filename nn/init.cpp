// SPDX-License-Identifier: Apache-2.0
#include "nn/init.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "framework/distributed/shard_runs.h"
#include "framework/runtime/error.h"
#include "framework/runtime/parallel_for.h"
#include "framework/runtime/random.h"
#include "framework/tensor/fill.h"

namespace moegrad::nn {
namespace {

constexpr std::int64_t kGrain = 1 << 12;

/// Position in Hugging Face's orientation of element `stored` of the whole parameter.
std::int64_t global_index(const ParameterLayout& layout, std::int64_t stored) {
  if (!layout.in_first) return stored;
  const auto in = layout.stacked[1], out = layout.stacked[2];  // stored as [E, in, out]
  const auto expert = stored / (in * out);
  const auto row = stored / out % in;
  const auto column = stored % out;
  return (expert * out + column) * in + row;
}

}  // namespace

void init_normal(const ParameterSlot& slot, std::uint64_t seed, double std) {
  Tensor parameter = slot.parameter();
  std::optional<ShardRuns> runs;
  if (const auto& spec = parameter.shard_spec()) runs.emplace(*spec);
  const Random random(seed, slot.name);
  dispatch_floating(parameter.dtype(), [&]<class T>() {
    const auto values = parameter.mutable_data<T>();
    parallel_for(parameter.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (auto i = begin; i < end; ++i) {
        const auto stored = runs ? runs->index_in_whole(i) : i;
        const auto index = static_cast<std::uint64_t>(global_index(slot.layout, stored));
        values[static_cast<std::size_t>(i)] = static_cast<T>(std * random.normal(index));
      }
    });
  });
}

void init_weights(Module& module, std::uint64_t seed, double std) {
  module.reshard();
  std::vector<Tensor> done;
  for (const auto& slot : module.parameter_slots()) {
    Tensor parameter = slot.parameter();
    const bool tied =
        std::ranges::any_of(done, [&](const Tensor& seen) { return seen.is(parameter); });
    if (tied) continue;
    check(!parameter.is_meta(), "init_weights: parameter '", slot.name,
          "' has no bytes yet: it was made on the meta device; call to_empty()");
    done.push_back(parameter);
    if (parameter.ndim() == 1) {
      fill_(parameter, 1.0);
    } else {
      init_normal(slot, seed, std);
    }
  }
}

}  // namespace moegrad::nn
