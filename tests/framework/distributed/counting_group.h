// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "framework/distributed/process_group.h"

namespace moegrad::testing {

/// A group that counts this rank's calls and passes them on.
class CountingGroup final : public ProcessGroup {
 public:
  explicit CountingGroup(std::shared_ptr<ProcessGroup> group) : group_(std::move(group)) {}

  int all_reduces() const { return all_reduces_; }
  int other_calls() const { return other_calls_; }

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  const std::string& name() const override { return group_->name(); }

  WorkPtr all_reduce(std::span<std::byte> buffer, Dtype dtype, ReduceOp op,
                     const CollectiveOptions& options) override {
    ++all_reduces_;
    return group_->all_reduce(buffer, dtype, op, options);
  }
  WorkPtr all_gather(std::span<const std::byte> input, Dtype dtype, GatherConsumer consume,
                     const CollectiveOptions& options) override {
    ++other_calls_;
    return group_->all_gather(input, dtype, std::move(consume), options);
  }
  WorkPtr reduce_scatter(std::span<const std::byte> input, std::span<std::byte> output, Dtype dtype,
                         ReduceOp op, const CollectiveOptions& options) override {
    ++other_calls_;
    return group_->reduce_scatter(input, output, dtype, op, options);
  }
  WorkPtr broadcast(std::span<std::byte> buffer, int root, Dtype dtype,
                    const CollectiveOptions& options) override {
    ++other_calls_;
    return group_->broadcast(buffer, root, dtype, options);
  }
  WorkPtr all_to_all(std::span<const std::byte> input, std::span<const std::int64_t> send_counts,
                     std::span<std::byte> output, std::span<const std::int64_t> recv_counts,
                     Dtype dtype, const CollectiveOptions& options) override {
    ++other_calls_;
    return group_->all_to_all(input, send_counts, output, recv_counts, dtype, options);
  }
  WorkPtr send(std::span<const std::byte> input, int to, int tag, Dtype dtype,
               const CollectiveOptions& options) override {
    ++other_calls_;
    return group_->send(input, to, tag, dtype, options);
  }
  WorkPtr recv(std::span<std::byte> output, int from, int tag, Dtype dtype,
               const CollectiveOptions& options) override {
    ++other_calls_;
    return group_->recv(output, from, tag, dtype, options);
  }
  WorkPtr barrier(const CollectiveOptions& options) override {
    ++other_calls_;
    return group_->barrier(options);
  }
  std::shared_ptr<ProcessGroup> subgroup(std::span<const int> ranks,
                                         const std::string& name) override {
    return group_->subgroup(ranks, name);
  }

 private:
  std::shared_ptr<ProcessGroup> group_;
  int all_reduces_ = 0;
  int other_calls_ = 0;
};

}  // namespace moegrad::testing
