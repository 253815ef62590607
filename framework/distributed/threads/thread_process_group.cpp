// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/threads/thread_process_group.h"

#include <algorithm>
#include <exception>
#include <sstream>
#include <utility>

namespace moegrad {
namespace {

class ThreadWork final : public Work {
 public:
  ThreadWork(std::shared_ptr<ThreadHub> hub, std::shared_ptr<ThreadCall> call)
      : hub_(std::move(hub)), call_(std::move(call)) {}
  ~ThreadWork() override {
    drop([this] { hub_->release(*call_, std::uncaught_exceptions() > exceptions_); });
  }

 protected:
  const CollectiveRequest& request() const override { return *call_; }
  void block() override { hub_->wait(*call_); }
  bool has_ended() override { return hub_->test(*call_); }
  std::exception_ptr failure() override { return hub_->failure(*call_); }
  CollectiveTiming times() override {
    return {.met = call_->met,
            .ended = call_->ended,
            .busy = call_->busy,
            .work = call_->work,
            .wire_bytes = call_->wire_bytes};
  }

 private:
  std::shared_ptr<ThreadHub> hub_;
  std::shared_ptr<ThreadCall> call_;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace

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
  return std::make_shared<ThreadWork>(hub_, std::move(posted));
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
