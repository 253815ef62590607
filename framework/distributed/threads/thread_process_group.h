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
/// of the same direction and tag are ordered. A Work must be waited for on the rank's own thread. A
/// Work that is dropped blocks until its call has ended. A GatherConsumer runs without a
/// RankContext of its rank and must not wait for a collective. A consumer that runs longer than
/// LaunchOptions::deadline is given up, and must not read the other ranks' inputs any more.
class ThreadProcessGroup final : public ProcessGroup {
 public:
  ThreadProcessGroup(std::shared_ptr<ThreadHub> hub, std::shared_ptr<GroupState> group, int rank);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(group_->ranks.size()); }
  const std::string& name() const override { return group_->name; }
  std::span<const int> ranks() const override { return group_->ranks; }

  WorkPtr all_gather(std::span<const std::byte> input, Dtype dtype, GatherConsumer consume,
                     const CollectiveOptions& options = {}) override;
  WorkPtr reduce_scatter(ByteParts input, std::span<std::byte> output, Dtype dtype, ReduceOp op,
                         const CollectiveOptions& options = {}) override;
  WorkPtr all_reduce(std::span<std::byte> buffer, Dtype dtype, ReduceOp op,
                     const CollectiveOptions& options = {}) override;
  WorkPtr broadcast(std::span<std::byte> buffer, int root, Dtype dtype,
                    const CollectiveOptions& options = {}) override;
  WorkPtr all_to_all(std::span<const std::byte> input, std::span<const std::int64_t> send_counts,
                     std::span<std::byte> output, std::span<const std::int64_t> recv_counts,
                     Dtype dtype, const CollectiveOptions& options = {}) override;
  WorkPtr send(std::span<const std::byte> input, int to, int tag, Dtype dtype,
               const CollectiveOptions& options = {}) override;
  WorkPtr recv(std::span<std::byte> output, int from, int tag, Dtype dtype,
               const CollectiveOptions& options = {}) override;
  WorkPtr barrier(const CollectiveOptions& options = {}) override;
  std::shared_ptr<const void> excuse(std::string what) override;
  std::shared_ptr<ProcessGroup> subgroup(std::span<const int> ranks,
                                         const std::string& name) override;

 private:
  WorkPtr post(const ChannelKey& key, std::size_t slot, std::shared_ptr<CollectiveCall> call);
  // A call of every rank of the group.
  WorkPtr post(const std::string& queue, std::shared_ptr<CollectiveCall> call);

  std::shared_ptr<ThreadHub> hub_;
  std::shared_ptr<GroupState> group_;
  int rank_;
};

}  // namespace moegrad
