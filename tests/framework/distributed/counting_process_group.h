// SPDX-License-Identifier: Apache-2.0
#pragma once

// A ProcessGroup that counts what passes through it: also the pattern of any other decorator.

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/distributed/process_group.h"

namespace moegrad::test {

/// What fully_shard's comparison of the initial weights goes through, once for each group: counted
/// only by this name, so that other counts are those of every step.
inline constexpr std::string_view kSameValuesQueue = "same values";

/// Which calls to count; an empty name stands for all.
struct CallFilter {
  std::string op = {};  // "all_gather", "reduce_scatter", ...
  std::string queue = {};
  std::string group = {};
};

/// What a rank handed over: of an all_gather, reduce_scatter, all_to_all or send its input, of a
/// recv its output.
struct CallTotals {
  std::int64_t calls = 0;
  std::int64_t elements = 0;
  std::int64_t bytes = 0;

  friend bool operator==(const CallTotals&, const CallTotals&) = default;
};

/// The calls of one group and of all its subgroups; one rank's, or, given to several, theirs.
class CallCounts {
 public:
  void add(CallFilter call, std::int64_t bytes, Dtype dtype) {
    const std::lock_guard lock(mutex_);
    calls_.push_back({std::move(call), bytes / size_of(dtype), bytes});
  }

  CallTotals total(const CallFilter& filter = {}) const {
    const auto fits = [](const std::string& wanted, const std::string& name) {
      return wanted.empty() || wanted == name;
    };
    const std::lock_guard lock(mutex_);
    CallTotals sum;
    for (const auto& [call, elements, bytes] : calls_) {
      if (!fits(filter.op, call.op) || !fits(filter.queue, call.queue)) continue;
      if (!fits(filter.group, call.group)) continue;
      if (filter.queue.empty() && call.queue == kSameValuesQueue) continue;
      ++sum.calls;
      sum.elements += elements;
      sum.bytes += bytes;
    }
    return sum;
  }

  std::int64_t calls(const CallFilter& filter = {}) const { return total(filter).calls; }

  /// From zero again.
  void clear() {
    const std::lock_guard lock(mutex_);
    calls_.clear();
  }

 private:
  struct Call {
    CallFilter name;
    std::int64_t elements;
    std::int64_t bytes;
  };

  mutable std::mutex mutex_;
  std::vector<Call> calls_;
};

/// Counts each call and hands it on to `group`. A subgroup counts into the same counts; making it
/// counts nothing. Point-to-point calls have no queue and count as of the queue "".
class CountingProcessGroup final : public ProcessGroup {
 public:
  CountingProcessGroup(std::shared_ptr<ProcessGroup> group, std::shared_ptr<CallCounts> counts)
      : ProcessGroup(group->name(), {group->ranks().begin(), group->ranks().end()}, group->rank()),
        group_(std::move(group)),
        counts_(std::move(counts)) {}

 protected:
  WorkPtr issue(CollectiveCall call) override {
    counts_->add({.op = std::string(to_string(call.op)),
                  .queue = is_point_to_point(call.op) ? "" : std::string(to_string(call.queue)),
                  .group = name()},
                 call.count * size_of(call.dtype), call.dtype);
    return pass_on(*group_, std::move(call));
  }
  std::shared_ptr<ProcessGroup> make_subgroup(std::span<const int> ranks,
                                              const std::string& name) override {
    return std::make_shared<CountingProcessGroup>(group_->subgroup(ranks, name), counts_);
  }
  std::shared_ptr<const void> begin_excuse(std::string what) override {
    return group_->excuse(std::move(what));
  }

 private:
  std::shared_ptr<ProcessGroup> group_;
  std::shared_ptr<CallCounts> counts_;
};

}  // namespace moegrad::test
