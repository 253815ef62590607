// SPDX-License-Identifier: Apache-2.0
#include "nn/init.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <optional>
#include <variant>

#include "framework/distributed/shard_runs.h"
#include "framework/runtime/error.h"
#include "framework/runtime/grad_mode.h"
#include "framework/runtime/parallel_for.h"
#include "framework/runtime/random.h"
#include "framework/tensor/fill.h"
#include "nn/normal_quantile.h"

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

/// Writes value_at(i) into the element with global index i.
template <class ValueAt>
void write_by_index(const ParameterSlot& slot, const ValueAt& value_at) {
  Tensor parameter = slot.parameter();
  std::optional<ShardRuns> runs;
  if (const auto& spec = parameter.shard_spec()) runs.emplace(*spec);
  dispatch_floating(parameter.dtype(), [&]<class T>() {
    const auto values = parameter.mutable_data<T>();
    parallel_for(parameter.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (auto i = begin; i < end; ++i) {
        const auto stored = runs ? runs->index_in_whole(i) : i;
        const auto index = static_cast<std::uint64_t>(global_index(slot.layout, stored));
        values[static_cast<std::size_t>(i)] = static_cast<T>(value_at(index));
      }
    });
  });
}

void init_uniform(const ParameterSlot& slot, std::uint64_t seed, double low, double high) {
  const Random random(seed, slot.name);
  double largest = high;  // that rounding to the dtype does not take to `high`
  dispatch_floating(slot.parameter().dtype(), [&]<class T>() {
    const auto nearest = static_cast<T>(high);
    const bool is_below = static_cast<double>(nearest) < high;
    largest = is_below ? nearest : std::nextafter(nearest, std::numeric_limits<T>::lowest());
  });
  largest = std::max(largest, low);
  write_by_index(slot, [&](std::uint64_t i) {
    return std::min(low + (high - low) * random.uniform(i), largest);
  });
}

// One draw per element, whatever the interval, through the inverse of the distribution function.
// Drawing again until a number is inside would take ever more draws as the interval leaves the
// mean.
void init_trunc_normal(const ParameterSlot& slot, std::uint64_t seed,
                       const InitialValues::TruncNormal& rule) {
  const Random random(seed, slot.name);
  const auto [mean, std, low, high] = rule;
  const TruncNormalQuantile quantile((low - mean) / std, (high - mean) / std);
  write_by_index(slot, [&, mean = mean, std = std, low = low, high = high](std::uint64_t i) {
    return std::clamp(mean + std * quantile(random.uniform(i)), low, high);
  });
}

struct Fans {
  double in, out;
};

/// The fans of one matrix in Hugging Face's orientation: of one expert where experts are stacked,
/// and of its gate_proj or up_proj where these are side by side.
Fans fans_of(std::string_view what, const ParameterSlot& slot) {
  const auto real = [](std::int64_t size) { return static_cast<double>(size); };
  const auto& [role, stacked, in_first] = slot.layout;
  if (stacked.ndim() == 3) {
    const auto in = stacked[in_first ? 1 : 2], out = stacked[in_first ? 2 : 1];
    return {real(in), real(role == ParameterLayout::Role::kExpertGateUp ? out / 2 : out)};
  }
  const Shape& shape = global_shape(slot.parameter());
  check<ShapeError>(shape.ndim() >= 2, what, ": fan_in and fan_out of '", slot.name,
                    "' need two dimensions or more, got ", shape);
  std::int64_t inner = 1;
  for (std::int64_t i = 2; i < shape.ndim(); ++i) inner *= shape[i];
  return {real(shape[1] * inner), real(shape[0] * inner)};
}

void init_scaled(const ParameterSlot& slot, std::uint64_t seed, const InitialValues::Scaled& rule,
                 const Fans& fans) {
  const double fan = rule.fan == Fan::kIn    ? fans.in
                     : rule.fan == Fan::kOut ? fans.out
                                             : 0.5 * (fans.in + fans.out);
  const double std = rule.gain / std::sqrt(fan);
  if (rule.normal) return init_normal(slot, seed, std);
  const double bound = std::numbers::sqrt3 * std;
  init_uniform(slot, seed, -bound, bound);
}

void check_has_bytes(std::string_view what, const ParameterSlot& slot) {
  check(!slot.parameter().is_meta(), what, ": parameter '", slot.name,
        "' has no bytes yet: it was made on the meta device; call to_empty()");
}

/// Writes what is declared. `std`: of normal() without one of its own.
void write_values(const ParameterSlot& slot, std::uint64_t seed, double std,
                  const InitialValues& values) {
  const auto& rule = values.rule();
  if (const auto* normal = std::get_if<InitialValues::Normal>(&rule)) {
    init_normal(slot, seed, normal->std.value_or(std));
  } else if (const auto* constant = std::get_if<InitialValues::Constant>(&rule)) {
    const NoGradGuard no_grad;
    fill_(slot.parameter(), constant->value);
  } else if (const auto* uniform = std::get_if<InitialValues::Uniform>(&rule)) {
    init_uniform(slot, seed, uniform->low, uniform->high);
  } else if (const auto* truncated = std::get_if<InitialValues::TruncNormal>(&rule)) {
    init_trunc_normal(slot, seed, *truncated);
  } else if (const auto* scaled = std::get_if<InitialValues::Scaled>(&rule)) {
    init_scaled(slot, seed, *scaled, fans_of("init_weights", slot));
  }
}

// A constructor gives a buffer no values on the meta device, and nothing draws them.
void check_buffers(const Module& module) {
  for (const auto& slot : module.buffer_slots()) {
    const auto& storage = slot.tensor->storage();
    const bool declared = slot.initial.is_declared() && !slot.tensor->is_meta();
    check(declared || !slot.made_on_meta || storage.version() > 0, "init_weights: buffer '",
          slot.name,
          "' was made on the meta device, where a constructor gives no values; fill it after "
          "to_empty(), declare values where it is registered, or make it under MetaGuard(false)");
  }
}

}  // namespace

void init_normal(const ParameterSlot& slot, std::uint64_t seed, double std) {
  const Random random(seed, slot.name);
  write_by_index(slot, [&](std::uint64_t i) { return std * random.normal(i); });
}

void init_parameter(Module& module, std::string_view name, const InitialValues& values,
                    std::uint64_t seed) {
  module.restore_parameters();
  const auto slots = module.parameter_slots();
  const auto named = std::ranges::find(slots, name, &ParameterSlot::name);
  check<ValueError>(named != slots.end(), "init_parameter: the module must have a parameter '",
                    name, "', got none");
  // A tied parameter has its values under its first name.
  const auto slot = std::ranges::find_if(
      slots, [&](const ParameterSlot& first) { return first.parameter().is(named->parameter()); });
  check_has_bytes("init_parameter", *slot);
  check<ValueError>(values.is_declared(), "init_parameter: values of '", name,
                    "' must be given, got InitialValues()");
  const auto* const normal = std::get_if<InitialValues::Normal>(&values.rule());
  check<ValueError>(normal == nullptr || normal->std, "init_parameter: normal() of '", name,
                    "' must be given a std");
  if (std::holds_alternative<InitialValues::Scaled>(values.rule())) {
    fans_of("init_parameter", *slot);
  }
  write_values(*slot, seed, /*std=*/0.0, values);
}

void init_weights(Module& module, std::uint64_t seed, double std) {
  check<ValueError>(std::isfinite(std) && std >= 0,
                    "init_weights: std must be finite and >= 0, got ", std);
  module.restore_parameters();
  const auto slots = module.distinct_parameters();
  for (const auto& slot : slots) {
    const Tensor& parameter = slot.parameter();
    check_has_bytes("init_weights", slot);
    const bool keeps = !slot.initial.is_declared() && parameter.ndim() < 2;
    check(
        !(keeps && slot.made_on_meta), "init_weights: parameter '", slot.name, "' ",
        parameter.shape(),
        " was made on the meta device, where a constructor gives no values; declare them where it "
        "is registered, as in register_parameter(name, tensor, InitialValues::zeros())");
    if (std::holds_alternative<InitialValues::Scaled>(slot.initial.rule())) {
      fans_of("init_weights", slot);
    }
  }
  check_buffers(module);
  for (const auto& slot : slots) {
    if (slot.initial.is_declared()) {
      write_values(slot, seed, std, slot.initial);
    } else if (slot.parameter().ndim() >= 2) {
      init_normal(slot, seed, std);
    }
  }
  for (const auto& slot : module.buffer_slots()) {
    if (!slot.initial.is_declared()) continue;
    write_values({.name = slot.name, .tensor = slot.tensor, .layout = {}}, seed, std, slot.initial);
  }
}

}  // namespace moegrad::nn
