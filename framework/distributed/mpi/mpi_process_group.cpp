// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/mpi/mpi_process_group.h"

#include <utility>

#include "framework/distributed/backend_work.h"

namespace moegrad::mpi {

MpiProcessGroup::MpiProcessGroup(std::shared_ptr<MpiHub> hub, std::shared_ptr<MpiGroup> group)
    : ProcessGroup(group->name, group->ranks, group->rank, hub->hosts_of(group->ranks)),
      hub_(std::move(hub)),
      group_(std::move(group)) {
  if (hub_->options().check_nan) check_nan();
}

WorkPtr MpiProcessGroup::issue(CollectiveCall call) {
  auto posted = std::make_shared<MpiCall>(std::move(call));
  posted->line = {.group = group_->id, .queue = posted->queue};
  if (is_point_to_point(posted->op)) {
    const int tags = hub_->most_tags();
    check<ValueError>(0 <= posted->tag && posted->tag < tags, to_string(posted->op),
                      ": tag must be in [0, ", tags, ") over MPI, got ", posted->tag);
    posted->line.from = posted->from;
    posted->line.to = posted->to;
    posted->line.tag = posted->tag;
    posted->line.side = posted->op == CollectiveOp::kSend ? 0 : 1;
  }
  hub_->post(*group_, posted);
  return std::make_shared<BackendWork<MpiHub, MpiCall>>(hub_, std::move(posted));
}

std::shared_ptr<const void> MpiProcessGroup::begin_excuse(std::string what) {
  return MpiHub::excuse(hub_, *group_, std::move(what));
}

std::shared_ptr<ProcessGroup> MpiProcessGroup::make_subgroup(std::span<const int> members,
                                                             const std::string& name) {
  const auto state = hub_->make_group(group_, members, name);
  auto group = std::make_shared<MpiProcessGroup>(hub_, state);
  group->barrier({.label = state->label})->wait();
  return group;
}

}  // namespace moegrad::mpi
