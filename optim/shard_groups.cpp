// SPDX-License-Identifier: Apache-2.0
#include "optim/shard_groups.h"

#include <algorithm>

#include "framework/distributed/shard_spec.h"
#include "framework/runtime/error.h"

namespace moegrad::optim {
namespace {

void add(const std::shared_ptr<ProcessGroup>& group, ProcessGroups& groups) {
  if (group == nullptr || group->size() == 1) return;
  if (std::ranges::find(groups, group) == groups.end()) groups.push_back(group);
}

}  // namespace

void check_not_replaced(std::string_view op, const NamedTensors& parameters) {
  for (const auto& [name, parameter] : parameters) {
    check(!has_mark(parameter, kReplaced), op, ": '", name,
          "' must be a parameter of its module, got the whole tensor that fully_shard or "
          "expert_parallel has replaced by a part; take named_parameters() afterwards");
  }
}

void check_all_spread(std::string_view op, const NamedTensors& parameters) {
  const auto is_spread = [](const Tensor& parameter) {
    const auto& spec = parameter.shard_spec();
    return spec != nullptr && moegrad::is_spread(*spec);
  };
  const auto spread = std::ranges::find_if(parameters, is_spread, &NamedTensor::tensor);
  if (spread == parameters.end()) return;
  for (const auto& [name, parameter] : parameters) {
    const bool is_whole = parameter.shard_spec() == nullptr && !has_mark(parameter, kLeftWhole);
    check(!is_whole || !parameter.grad().defined(), op, ": '", name,
          "' is whole on every rank while '", spread->name,
          "' is spread over them, so nobody adds up its gradients: call fully_shard on the module "
          "that holds all, or name it in Policy::ignored_parameters and add them up yourself");
  }
}

ProcessGroups shard_groups(const Tensor& parameter) {
  ProcessGroups groups;
  if (const auto& spec = parameter.shard_spec()) {
    for (const auto& placement : spec->placements) {
      if (placement.dim) add(placement.group, groups);
    }
  }
  return groups;
}

ProcessGroups mesh_groups(const NamedTensors& parameters) {
  ProcessGroups groups;
  for (const auto& [name, parameter] : parameters) {
    const auto& spec = parameter.shard_spec();
    if (spec == nullptr) continue;
    for (const auto& placement : spec->placements) add(placement.group, groups);
  }
  return groups;
}

}  // namespace moegrad::optim
