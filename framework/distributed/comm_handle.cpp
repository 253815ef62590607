// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/comm_handle.h"

#include <algorithm>

#include "framework/runtime/error.h"
#include "framework/runtime/rank_context.h"

namespace moegrad {
namespace {

std::string handle_of(const ProcessGroup& group, std::size_t number) {
  return group.name() + "#" + std::to_string(number);
}

}  // namespace

std::string comm_handle(const std::shared_ptr<ProcessGroup>& group) {
  check<ValueError>(group != nullptr, "comm_handle: needs a process group, got null");
  auto& groups = RankContext::current().named_groups();
  auto found =
      std::ranges::find_if(groups, [&](const auto& named) { return named.lock() == group; });
  if (found == groups.end()) found = groups.insert(groups.end(), group);
  return handle_of(*group, static_cast<std::size_t>(found - groups.begin()));
}

std::shared_ptr<ProcessGroup> group_of_handle(std::string_view op, const std::string& handle) {
  const auto& groups = RankContext::current().named_groups();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    auto group = groups[i].lock();
    if (group != nullptr && handle_of(*group, i) == handle) return group;
  }
  throw ValueError(std::string(op) + ": '" + handle +
                   "' must be the comm_handle() of a group of this rank, got a name that none has");
}

}  // namespace moegrad
