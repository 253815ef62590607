// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "framework/distributed/mpi/mpi_hub.h"
#include "framework/distributed/process_group.h"

namespace moegrad::mpi {

/// The backend whose ranks are processes; see Note [Ranks as processes]. Made by launch_mpi().
///
/// A group makes its communicators when it is made, which must be while no call of its parent is
/// pending. Tags of messages are in [0, 2^28). A consumer that does not return holds up
/// all calls of its rank, so that the other ranks fail at their deadlines.
class MpiProcessGroup final : public ProcessGroup {
 public:
  MpiProcessGroup(std::shared_ptr<MpiHub> hub, std::shared_ptr<MpiGroup> group);

 protected:
  WorkPtr issue(CollectiveCall call) override;
  std::shared_ptr<ProcessGroup> make_subgroup(std::span<const int> ranks,
                                              const std::string& name) override;
  std::shared_ptr<const void> begin_excuse(std::string what) override;

 private:
  std::shared_ptr<MpiHub> hub_;
  std::shared_ptr<MpiGroup> group_;
};

}  // namespace moegrad::mpi
