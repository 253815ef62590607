// SPDX-License-Identifier: Apache-2.0
#include "fsdp/state_dict.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "framework/distributed/collectives.h"
#include "framework/distributed/gather_shards.h"
#include "framework/distributed/shard_runs.h"
#include "framework/runtime/error.h"
#include "framework/runtime/grad_mode.h"
#include "framework/runtime/rank_context.h"
#include "framework/tensor/fill.h"

namespace moegrad::fsdp {
namespace {

/// Throws unless `state` has a value for each of `parameters`, which include buffers, and no other.
void check_state(const NamedTensors& parameters, const NamedTensors& state) {
  std::set<std::string> given;
  for (const auto& [name, value] : state) {
    check(given.insert(name).second, "load_full_state_dict: key '", name, "' is given twice");
    check(std::ranges::find(parameters, name, &NamedTensor::name) != parameters.end(),
          "load_full_state_dict: unexpected key '", name, "'");
  }
  for (const auto& [name, parameter] : parameters) {
    const auto found = std::ranges::find(state, name, &NamedTensor::name);
    check(found != state.end(), "load_full_state_dict: missing key '", name, "'");
    const Shape& shape = global_shape(parameter);
    check<ShapeError>(found->tensor.shape() == shape, "load_full_state_dict: '", name, "' must be ",
                      shape, ", got ", found->tensor.shape());
  }
}

/// What rank 0 found wrong, in the form that is sent to all ranks.
struct CheckResult {
  enum Kind : std::int64_t { kGood, kWrongShape, kWrong };
  std::int64_t kind = kGood;
  std::string message;
};

CheckResult judge(const NamedTensors& parameters, const NamedTensors& state) {
  try {
    check_state(parameters, state);
  } catch (const ShapeError& error) {
    return {CheckResult::kWrongShape, error.what()};
  } catch (const Error& error) {
    return {CheckResult::kWrong, error.what()};
  }
  return {};
}

/// Returns rank 0's result on every rank.
CheckResult shared(const CheckResult& own, const std::shared_ptr<ProcessGroup>& world) {
  const std::string text = std::to_string(own.kind) + own.message;
  const auto first = all_gather_texts(world, text, {.label = "load_full_state_dict"})[0];
  return {first[0] - '0', first.substr(1)};
}

/// Broadcasts rank 0's whole parameter or buffer to all ranks. Truth values travel as numbers.
void share_whole(Tensor whole, ProcessGroup& world) {
  const bool is_mask = whole.dtype() == Dtype::kBool;
  Tensor sent = is_mask ? to_dtype(whole, Dtype::kInt64) : whole;
  world.broadcast(sent.mutable_bytes(), 0, sent.dtype(), {.label = "load_full_state_dict"})->wait();
  if (is_mask) copy_(whole, sent);
}

}  // namespace

NamedTensors full_state_dict(nn::Module& module) {
  const bool first = RankContext::current().rank() == 0;
  NamedTensors state;
  for (const auto& [name, parameter] : module.state_dict()) {
    const auto& spec = parameter.shard_spec();
    Tensor whole = spec != nullptr ? gather_shards(parameter, *spec) : parameter.detach();
    if (!first) continue;
    const bool shared = &whole.storage() == &parameter.storage();
    state.push_back({name, shared ? clone(whole) : std::move(whole)});
  }
  return state;
}

void load_full_state_dict(nn::Module& module, const NamedTensors& state) {
  const auto& context = RankContext::current();
  const auto world = context.world_size() > 1 ? context.group() : nullptr;
  const bool first = context.rank() == 0;
  const auto parameters = module.state_dict();
  const CheckResult result = shared(first ? judge(parameters, state) : CheckResult(), world);
  check<ShapeError>(result.kind != CheckResult::kWrongShape, result.message);
  check(result.kind == CheckResult::kGood, result.message);
  const NoGradGuard no_grad;
  for (const auto& [name, parameter] : parameters) {
    const Tensor given =
        first ? std::ranges::find(state, name, &NamedTensor::name)->tensor : Tensor();
    Tensor own = parameter.detach();
    if (const auto& spec = parameter.shard_spec()) {
      scatter_shards(given, own, *spec);
    } else {
      if (first) copy_(own, given);
      if (world != nullptr) share_whole(own, *world);
    }
  }
}

}  // namespace moegrad::fsdp
