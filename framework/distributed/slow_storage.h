// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "framework/distributed/process_group.h"
#include "framework/runtime/rank_context.h"

namespace moegrad {

/// While it lives the rank reads or writes files: the others wait for it without a deadline, see
/// ProcessGroup::excuse().
class SlowStorage {
 public:
  /// On a rank's own thread, where it counts for all groups; elsewhere and outside launch() it does
  /// nothing.
  explicit SlowStorage(std::string what)
      : SlowStorage(RankContext::current().group(), std::move(what)) {}
  /// For calls of `group`; null: does nothing.
  SlowStorage(const std::shared_ptr<ProcessGroup>& group, std::string what)
      : excuse_(group == nullptr ? nullptr : group->excuse(std::move(what))) {}
  SlowStorage(const SlowStorage&) = delete;
  SlowStorage& operator=(const SlowStorage&) = delete;

 private:
  std::shared_ptr<const void> excuse_;
};

}  // namespace moegrad
