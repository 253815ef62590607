// SPDX-License-Identifier: Apache-2.0
// How groups and their communicators are made.
#include <algorithm>
#include <sstream>

#include "framework/distributed/mpi/mpi_hub.h"
#include "framework/distributed/mpi/mpi_process.h"
#include "framework/distributed/work.h"
#include "framework/runtime/crc32c.h"

namespace moegrad::mpi {
namespace {

// Tags on a parent group's communicator, beside those of Line::Tags.
constexpr int kSubgroupTag = 2, kCreationTag = 3;

}  // namespace

std::vector<int> MpiHub::hosts_of(std::span<const int> ranks) const {
  std::vector<int> hosts;
  for (const int rank : ranks) hosts.push_back(process_.hosts()[static_cast<std::size_t>(rank)]);
  return hosts;
}

bool MpiHub::is_on_this_host(int rank) const {
  const auto& hosts = process_.hosts();
  return hosts[static_cast<std::size_t>(rank)] == hosts[static_cast<std::size_t>(rank_)];
}

std::shared_ptr<MpiGroup> MpiHub::make_group(const std::shared_ptr<MpiGroup>& parent,
                                             std::span<const int> members,
                                             const std::string& name) {
  check<CollectiveError>(!StepGuard::is_inside(), "subgroup ", name,
                         ": a consumer cannot make a group, it ",
                         "holds up the thread that executes collectives");
  const std::lock_guard one_at_a_time(makes_group_);
  auto group = std::make_shared<MpiGroup>();
  group->name = name;
  std::ostringstream list;
  for (const int member : members) {
    list << (group->ranks.empty() ? "" : ", ") << member;
    group->ranks.push_back(parent->ranks[static_cast<std::size_t>(member)]);
  }
  group->rank = static_cast<int>(std::ranges::find(members, parent->rank) - members.begin());
  {
    // Else the ranks would make communicators while their threads wait for each other's messages.
    const std::lock_guard lock(mutex_);
    const auto of_parent = [&](const auto& call) { return call->line.group == parent->id; };
    const auto pending = std::ranges::find_if(pending_, of_parent);
    check<CollectiveError>(pending == pending_.end(), "subgroup ", name, ": must be made while no ",
                           "call of group ", parent->name, " is pending, got ",
                           std::ranges::count_if(pending_, of_parent),
                           pending == pending_.end() ? "" : ", the oldest " + describe(**pending));
  }

  // The members meet over the parent's communicator, so that a member that does not come, or makes
  // another group, is an error in time: making a communicator would wait for it forever.
  CollectiveCall barrier;
  barrier.op = CollectiveOp::kBarrier;
  barrier.label = group->label = "subgroup of ranks {" + list.str() + "}";
  barrier.group = name;
  auto call = std::make_shared<MpiCall>(std::move(barrier));
  const auto text = name + list.str();
  call->line = {.group = parent->id,
                .tag = -1 - static_cast<int>(crc32c(std::as_bytes(std::span(text))) >> 2)};
  Slots slots{.world_ranks = group->ranks,
              .comm_ranks = {members.begin(), members.end()},
              .own = static_cast<std::size_t>(group->rank)};
  process_.run([&] {
    // Unique, as each process counts its own, and no two have the same rank.
    call->group_id = ++groups_made_ * world_size_ + rank_;
    lines_[call->line] = std::make_unique<Line>(
        *this, call->line, std::move(slots), parent->comms[0],
        Line::Tags{.header_out = kSubgroupTag, .header_in = kSubgroupTag, .payload = kSubgroupTag});
    return true;
  });
  post(*parent, call);
  wait(*call);
  if (const auto thrown = failure(*call)) std::rethrow_exception(thrown);
  process_.run(
      [&] {
        group->id = lines_.at(call->line)->header_of(0).group_id;
        lines_.erase(call->line);
        make_comms(*group, parent->comms[0], members);
        groups_.emplace(group->id, group);
        return true;
      },
      options_.deadline, "making group " + name);
  return group;
}

void MpiHub::make_comms(MpiGroup& group, MPI_Comm parent, std::span<const int> members) {
  MPI_Group of_parent = MPI_GROUP_NULL, of_members = MPI_GROUP_NULL;
  check_mpi(MPI_Comm_group(parent, &of_parent), "MPI_Comm_group");
  check_mpi(
      MPI_Group_incl(of_parent, static_cast<int>(members.size()), members.data(), &of_members),
      "MPI_Group_incl");
  check_mpi(MPI_Comm_create_group(parent, of_members, kCreationTag, &group.comms[0]),
            "MPI_Comm_create_group");
  MPI_Group_free(&of_members);
  MPI_Group_free(&of_parent);
  MPI_Comm_set_errhandler(group.comms[0], MPI_ERRORS_RETURN);
  for (std::size_t queue = 1; queue < kQueues; ++queue) {
    check_mpi(MPI_Comm_dup(group.comms[0], &group.comms[queue]), "MPI_Comm_dup");
  }
}

}  // namespace moegrad::mpi
