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
      : group_(std::move(group)), counts_(std::move(counts)) {}

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  const std::string& name() const override { return group_->name(); }
  std::span<const int> ranks() const override { return group_->ranks(); }

  WorkPtr all_gather(std::span<const std::byte> input, Dtype dtype, GatherConsumer consume,
                     const CollectiveOptions& options = {}) override {
    count("all_gather", options.queue, std::ssize(input), dtype);
    return group_->all_gather(input, dtype, std::move(consume), options);
  }
  WorkPtr reduce_scatter(ByteParts input, std::span<std::byte> output, Dtype dtype, ReduceOp op,
                         const CollectiveOptions& options = {}) override {
    std::int64_t bytes = 0;
    for (const auto part : input) bytes += std::ssize(part);
    count("reduce_scatter", options.queue, bytes, dtype);
    return group_->reduce_scatter(std::move(input), output, dtype, op, options);
  }
  WorkPtr all_reduce(std::span<std::byte> buffer, Dtype dtype, ReduceOp op,
                     const CollectiveOptions& options = {}) override {
    count("all_reduce", options.queue, std::ssize(buffer), dtype);
    return group_->all_reduce(buffer, dtype, op, options);
  }
  WorkPtr broadcast(std::span<std::byte> buffer, int root, Dtype dtype,
                    const CollectiveOptions& options = {}) override {
    count("broadcast", options.queue, std::ssize(buffer), dtype);
    return group_->broadcast(buffer, root, dtype, options);
  }
  WorkPtr all_to_all(std::span<const std::byte> input, std::span<const std::int64_t> send_counts,
                     std::span<std::byte> output, std::span<const std::int64_t> recv_counts,
                     Dtype dtype, const CollectiveOptions& options = {}) override {
    count("all_to_all", options.queue, std::ssize(input), dtype);
    return group_->all_to_all(input, send_counts, output, recv_counts, dtype, options);
  }
  WorkPtr send(std::span<const std::byte> input, int to, int tag, Dtype dtype,
               const CollectiveOptions& options = {}) override {
    count("send", "", std::ssize(input), dtype);
    return group_->send(input, to, tag, dtype, options);
  }
  WorkPtr recv(std::span<std::byte> output, int from, int tag, Dtype dtype,
               const CollectiveOptions& options = {}) override {
    count("recv", "", std::ssize(output), dtype);
    return group_->recv(output, from, tag, dtype, options);
  }
  WorkPtr barrier(const CollectiveOptions& options = {}) override {
    count("barrier", options.queue, 0, Dtype::kFloat32);
    return group_->barrier(options);
  }
  std::shared_ptr<const void> excuse(std::string what) override {
    return group_->excuse(std::move(what));
  }
  std::shared_ptr<ProcessGroup> subgroup(std::span<const int> ranks,
                                         const std::string& name) override {
    return std::make_shared<CountingProcessGroup>(group_->subgroup(ranks, name), counts_);
  }

 private:
  void count(std::string_view op, const std::string& queue, std::int64_t bytes, Dtype dtype) {
    counts_->add({.op = std::string(op), .queue = queue, .group = name()}, bytes, dtype);
  }

  std::shared_ptr<ProcessGroup> group_;
  std::shared_ptr<CallCounts> counts_;
};

}  // namespace moegrad::test
