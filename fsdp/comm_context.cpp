// SPDX-License-Identifier: Apache-2.0
#include "fsdp/comm_context.h"

#include <algorithm>

#include "fsdp/gradient_reducer.h"
#include "fsdp/param_group.h"

namespace moegrad::fsdp {

std::vector<ParamGroup*>& CommContext::scattering(const ProcessGroup* ranks) {
  const auto found =
      std::ranges::find(scattering_, ranks, [](const auto& entry) { return entry.first; });
  if (found != scattering_.end()) return found->second;
  return scattering_.emplace_back(ranks, std::vector<ParamGroup*>()).second;
}

void CommContext::drain(const ProcessGroup* ranks, std::size_t max_in_flight) {
  auto& groups = scattering(ranks);
  while (groups.size() >= max_in_flight) {
    groups.front()->reducer().finish_scatter();
    groups.erase(groups.begin());
  }
}

void CommContext::add(const ProcessGroup* ranks, ParamGroup& group) {
  std::erase(scattering(ranks), &group);
  scattering(ranks).push_back(&group);
  if (std::ranges::find(reducing_, &group) == reducing_.end()) reducing_.push_back(&group);
}

void CommContext::finish() {
  for (auto& [ranks, groups] : scattering_) groups.clear();
  // Issues all all-reduces before it waits for the first one.
  for (auto* group : reducing_) group->reducer().finish_scatter();
  for (auto* group : reducing_) group->reducer().finish();
  reducing_.clear();
}

void CommContext::remove(ParamGroup& group) {
  for (auto& [ranks, groups] : scattering_) std::erase(groups, &group);
  std::erase(reducing_, &group);
}

}  // namespace moegrad::fsdp
