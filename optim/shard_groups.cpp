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
    const auto& spec = parameter.shard_spec();
    check(spec == nullptr || !spec->replaced, op, ": '", name,
          "' must be a parameter of its module, got the whole tensor that fully_shard has replaced "
          "by a shard; take named_parameters() after fully_shard");
  }
}

ProcessGroups shard_groups(const NamedTensors& parameters) {
  ProcessGroups groups;
  for (const auto& [name, parameter] : parameters) {
    if (const auto& spec = parameter.shard_spec()) add(spec->group, groups);
  }
  return groups;
}

ProcessGroups mesh_groups(const NamedTensors& parameters) {
  ProcessGroups groups;
  for (const auto& [name, parameter] : parameters) {
    const auto& spec = parameter.shard_spec();
    if (spec == nullptr) continue;
    add(spec->group, groups);
    add(spec->replicas, groups);
  }
  return groups;
}

}  // namespace moegrad::optim
