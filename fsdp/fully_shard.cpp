// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fully_shard.h"

#include <algorithm>

#include "framework/distributed/shard_spec.h"
#include "framework/runtime/error.h"

namespace moegrad::fsdp {
namespace {

// A parameter that carries a ShardSpec belongs to an earlier call: fine if that call's group has
// this very slot, an error if the slot still holds the whole tensor, tied to one that was taken.
void check_not_tied_elsewhere(const nn::ParameterSlot& slot, nn::Module& root) {
  for (const auto& [path, module] : root.named_modules()) {
    const auto* state = dynamic_cast<State*>(module->extension());
    if (state == nullptr || state->group() == nullptr) continue;
    for (const auto& param : state->group()->params()) {
      if (std::ranges::find(param.slots, slot.tensor) != param.slots.end()) return;
    }
  }
  throw Error(
      "fully_shard: parameter '" + slot.name +
      "' is tied to one that an earlier fully_shard call has taken; shard both in one call");
}

bool is_linear(const nn::ParameterSlot& slot) {
  return slot.layout.role != nn::ParameterLayout::Role::kDense;
}

}  // namespace

State& fully_shard(nn::Module& module, const DeviceMesh& mesh, const Policy& policy) {
  check(dynamic_cast<State*>(module.extension()) == nullptr,
        "fully_shard: the module has been sharded before");
  const auto wire = policy.mixed_precision.param_dtype;
  const auto reduce = policy.mixed_precision.reduce_dtype;
  check<DtypeError>(!wire || *wire == Dtype::kBFloat16,
                    "fully_shard: param_dtype must be bfloat16 or none, got ",
                    wire.value_or(Dtype::kBFloat16));
  check<DtypeError>(!reduce || *reduce == Dtype::kBFloat16,
                    "fully_shard: reduce_dtype must be bfloat16 or none, got ",
                    reduce.value_or(Dtype::kBFloat16));
  check<ValueError>(policy.forward_prefetch >= 0,
                    "fully_shard: forward_prefetch must not be negative, got ",
                    policy.forward_prefetch);
  std::vector<nn::ParameterSlot> slots;
  for (const auto& slot : module.parameter_slots()) {
    if (slot.tensor->shard_spec()) {
      check_not_tied_elsewhere(slot, module);
    } else if (!policy.linear_only_shard || is_linear(slot)) {
      slots.push_back(slot);
    }
  }
  std::unique_ptr<ParamGroup> group;
  if (!slots.empty()) group = std::make_unique<ParamGroup>(slots, mesh.group("shard"), policy);
  auto state = std::make_shared<State>(module, std::move(group), policy);
  module.attach(state);
  return *state;
}

}  // namespace moegrad::fsdp
