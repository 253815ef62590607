// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "framework/distributed/process_group.h"
#include "framework/distributed/threads/thread_hub.h"

namespace moegrad {

/// The backend whose ranks are threads of one process. Peers read each other's memory; nothing is
/// staged. Made by launch(); see Note [Rendezvous of rank threads].
///
/// Messages name ranks of the world, also in a subgroup. send and recv are in no queue: only calls
/// of the same direction and tag are ordered. A Work may be waited for on any thread but one that
/// runs a consumer. A consumer that runs longer than the call's deadline is given up, and must not
/// read the other ranks' inputs any more.
class ThreadProcessGroup final : public ProcessGroup {
 public:
  ThreadProcessGroup(std::shared_ptr<ThreadHub> hub, std::shared_ptr<GroupState> group, int rank);

 protected:
  WorkPtr issue(CollectiveCall call) override;
  std::shared_ptr<ProcessGroup> make_subgroup(std::span<const int> ranks,
                                              const std::string& name) override;
  std::shared_ptr<const void> begin_excuse(std::string what) override;

 private:
  std::shared_ptr<ThreadHub> hub_;
  std::shared_ptr<GroupState> group_;
};

}  // namespace moegrad
