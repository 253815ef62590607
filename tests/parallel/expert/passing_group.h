// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "framework/distributed/process_group.h"

namespace moegrad::test {

/// A group that passes its calls on to another: what derives from it looks at them, or changes
/// them.
class PassingGroup : public ProcessGroup {
 public:
  explicit PassingGroup(std::shared_ptr<ProcessGroup> group, std::vector<int> hosts = {})
      : ProcessGroup(group->name(), {group->ranks().begin(), group->ranks().end()}, group->rank(),
                     std::move(hosts)),
        group_(std::move(group)) {}

 protected:
  WorkPtr issue(CollectiveCall call) override { return pass_on(*group_, std::move(call)); }
  std::shared_ptr<ProcessGroup> make_subgroup(std::span<const int> ranks,
                                              const std::string& name) override {
    return group_->subgroup(ranks, name);
  }

 private:
  std::shared_ptr<ProcessGroup> group_;
};

}  // namespace moegrad::test
