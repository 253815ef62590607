// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/threads/thread_process_group.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "framework/distributed/backend_work.h"

namespace moegrad {

ThreadProcessGroup::ThreadProcessGroup(std::shared_ptr<ThreadHub> hub,
                                       std::shared_ptr<GroupState> group, int rank)
    : ProcessGroup(group->name, group->ranks, rank),
      hub_(std::move(hub)),
      group_(std::move(group)) {
  if (hub_->checks_nan()) check_nan();
}

WorkPtr ThreadProcessGroup::issue(CollectiveCall call) {
  // The sides of a queue are the group's ranks; those of a message are sender and receiver.
  auto side = static_cast<std::size_t>(rank());
  if (is_point_to_point(call.op)) side = call.op == CollectiveOp::kSend ? 0 : 1;
  const ChannelKey key = {.queue = call.queue, .from = call.from, .to = call.to, .tag = call.tag};
  auto posted = std::make_shared<ThreadCall>(std::move(call));
  hub_->post(*group_, key, side, posted);
  return std::make_shared<BackendWork<ThreadHub, ThreadCall>>(hub_, std::move(posted));
}

std::shared_ptr<const void> ThreadProcessGroup::begin_excuse(std::string what) {
  return ThreadHub::excuse(hub_, *group_, ranks()[static_cast<std::size_t>(rank())],
                           std::move(what));
}

std::shared_ptr<ProcessGroup> ThreadProcessGroup::make_subgroup(std::span<const int> members,
                                                                const std::string& name) {
  std::ostringstream list;
  std::vector<int> world_ranks;
  for (const int member : members) {
    list << (world_ranks.empty() ? "" : ", ") << member;
    world_ranks.push_back(ranks()[static_cast<std::size_t>(member)]);
  }
  const auto self = std::ranges::find(members, rank()) - members.begin();
  auto group = std::make_shared<ThreadProcessGroup>(
      hub_, hub_->join_group(name, std::move(world_ranks)), static_cast<int>(self));
  group->barrier({.label = "subgroup of ranks {" + list.str() + "}"})->wait();
  return group;
}

}  // namespace moegrad
