// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "framework/distributed/process_group.h"

namespace moegrad::test {

/// When the calls of a rank are executed.
enum class Execution : std::uint8_t {
  kAtIssue,  // whoever issues a call waits for it
  kAtWait    // none begins before its rank waits for one of them
};

/// The calls of one rank, in all groups, that are held back.
class HeldCalls {
 public:
  class HeldWork;

  /// `look`: called before calls that were held back begin, with the memory of all of them.
  HeldCalls(Execution execution, std::function<void(const ByteParts& memory)> look)
      : execution_(execution), look_(std::move(look)) {}

  WorkPtr issue(const CollectiveCall& call, std::function<WorkPtr()> begin);
  void begin_all();

 private:
  Execution execution_;
  std::function<void(const ByteParts& memory)> look_;
  std::vector<HeldWork*> held_;
};

/// A group whose calls move as early as any launch could move them, or as late.
class ExtremeGroup final : public ProcessGroup {
 public:
  ExtremeGroup(std::shared_ptr<ProcessGroup> group, std::shared_ptr<HeldCalls> calls)
      : ProcessGroup(group->name(), {group->ranks().begin(), group->ranks().end()}, group->rank()),
        group_(std::move(group)),
        calls_(std::move(calls)) {}

 protected:
  WorkPtr issue(CollectiveCall call) override {
    return calls_->issue(call, [group = group_, call] { return pass_on(*group, call); });
  }
  std::shared_ptr<ProcessGroup> make_subgroup(std::span<const int> ranks,
                                              const std::string& name) override {
    return std::make_shared<ExtremeGroup>(group_->subgroup(ranks, name), calls_);
  }

 private:
  std::shared_ptr<ProcessGroup> group_;
  std::shared_ptr<HeldCalls> calls_;
};

}  // namespace moegrad::test
