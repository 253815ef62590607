// SPDX-License-Identifier: Apache-2.0
#include "nn/init.h"

#include <optional>
#include <utility>
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
  using Kind = InitialValues::Kind;
  module.restore_parameters();
  const auto slots = module.distinct_parameters();
  for (const auto& slot : slots) {
    const Tensor& parameter = slot.parameter();
    check(!parameter.is_meta(), "init_weights: parameter '", slot.name,
          "' has no bytes yet: it was made on the meta device; call to_empty()");
    const bool keeps = slot.initial.kind() == Kind::kUndeclared && parameter.ndim() < 2;
    check(
        !(keeps && slot.made_on_meta), "init_weights: parameter '", slot.name, "' ",
        parameter.shape(),
        " was made on the meta device, where a constructor gives no values; declare them where it "
        "is registered, as in register_parameter(name, tensor, InitialValues::zeros())");
  }
  for (const auto& slot : slots) {
    switch (slot.initial.kind()) {
      case Kind::kUndeclared:
        if (slot.parameter().ndim() >= 2) init_normal(slot, seed, std);
        break;
      case Kind::kNormal:
        init_normal(slot, seed, slot.initial.std().value_or(std));
        break;
      case Kind::kOnes:
        fill_(slot.parameter(), 1.0);
        break;
      case Kind::kZeros:
        fill_(slot.parameter(), 0.0);
        break;
    }
  }
}

}  // namespace moegrad::nn
