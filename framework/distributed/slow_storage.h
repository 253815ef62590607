// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "framework/distributed/process_group.h"
#include "framework/runtime/rank_context.h"

namespace moegrad {

/// Exists while the rank reads or writes files: the others wait for the rank without a deadline.
/// See ProcessGroup::excuse().
class SlowStorage {
 public:
  /// For the calls of all groups, on a thread that belongs to a rank. On other threads and outside
  /// launch() it does nothing.
  explicit SlowStorage(std::string what) : SlowStorage(group_of_rank(), std::move(what)) {}
  /// For the calls of `group`. If `group` is null, it does nothing.
  SlowStorage(const std::shared_ptr<ProcessGroup>& group, std::string what)
      : excuse_(group == nullptr ? nullptr : group->excuse(std::move(what))) {}
  SlowStorage(const SlowStorage&) = delete;
  SlowStorage& operator=(const SlowStorage&) = delete;

 private:
  static std::shared_ptr<ProcessGroup> group_of_rank() {
    const auto* const rank = RankContext::find();
    return rank == nullptr ? nullptr : rank->group();
  }

  std::shared_ptr<const void> excuse_;
};

}  // namespace moegrad
