// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "framework/distributed/collective_call.h"
#include "framework/distributed/traffic.h"
#include "framework/distributed/work.h"
#include "framework/runtime/error.h"
#include "framework/tensor/dtype.h"

namespace moegrad {

/// How a call is made, and what errors and logs show of it.
struct CollectiveOptions {
  CollectiveQueue queue = CollectiveQueue::kDefault;
  std::string label = {};
  /// Which repetition of the call this is, such as the number of a step. It is compared like the
  /// label, and shown if ranks differ.
  std::int64_t round = 0;
  /// After which time the call fails, in place of the launch's deadline. In (0, 24 h].
  std::optional<std::chrono::milliseconds> deadline = {};
};

/// Collectives among the ranks of one group. Every call returns at once; the backend executes it.
/// All ranks must issue the same calls in the same order per queue. Operation, count and dtype are
/// compared when the ranks meet. A mismatch is an error on all ranks.
///
/// Note [Threads and collectives]
/// A group belongs to one rank. Any thread of the rank may issue calls and wait for them, and
/// several may at the same time. But the order of the calls in one queue must be the same on all
/// ranks, so the calls of one queue come from one thread, or are ordered by other means. A Work is
/// waited for by one thread at a time. A GatherConsumer runs on the backend's thread, without a
/// RankContext, and must not wait for a collective. What a backend asks for beyond that is written
/// there.
///
/// Note [Reduction order]
/// Sums run along one fixed binary tree over the ranks, whatever the backend: the sum of ranks
/// [lo, hi) is the sum of [lo, mid) plus the sum of [mid, hi), mid - lo being the largest power of
/// two below hi - lo. GradientSum continues the same tree over micro-batches.
///
/// The public calls are the same for all backends: they check the arguments, number and label the
/// call, count its bytes, and look for NaN if the launch asks for it. A backend implements issue(),
/// make_subgroup() and, if it has deadlines, begin_excuse().
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  const std::string& name() const { return name_; }
  /// The members as ranks of the world, ascending.
  std::span<const int> ranks() const { return ranks_; }
  /// The host of each member: equal numbers where two share one. Threads all do.
  std::span<const int> hosts() const { return hosts_; }
  /// What this rank has sent and received in this group and in all groups of more than one rank
  /// that came from the same one, and how long its threads have waited, by the names of the groups.
  /// A call counts when it is issued, in the group that was called, not in one that this wraps.
  /// Bytes that ranks agree on a call with do not count.
  std::map<std::string, TrafficFigures> traffic() const { return log_->read(); }

  /// Passes the inputs of all ranks (equal sizes) to `consume`, on the backend's thread, without a
  /// staging copy where ranks are threads. The call is done when this rank's consumer has returned;
  /// where ranks are threads, when every rank's has.
  WorkPtr all_gather(std::span<const std::byte> input, Dtype dtype, GatherConsumer consume,
                     const CollectiveOptions& options = {});
  /// output [size() * n] = the inputs [n] of all ranks, in rank order. They must not overlap,
  /// unless the input is this rank's place in the output.
  WorkPtr all_gather(std::span<const std::byte> input, std::span<std::byte> output, Dtype dtype,
                     const CollectiveOptions& options = {});
  /// output [n] = reduction over ranks of chunk rank() of input [size() * n]. They must not
  /// overlap, unless the input is in one part, and the output that chunk of it.
  WorkPtr reduce_scatter(ByteParts input, std::span<std::byte> output, Dtype dtype, ReduceOp op,
                         const CollectiveOptions& options = {});
  /// buffer [n] = reduction over ranks of buffer [n], in place.
  WorkPtr all_reduce(std::span<std::byte> buffer, Dtype dtype, ReduceOp op,
                     const CollectiveOptions& options = {});
  WorkPtr broadcast(std::span<std::byte> buffer, int root, Dtype dtype,
                    const CollectiveOptions& options = {});
  /// Sends send_counts[r] elements to each rank r and receives recv_counts[r] from it; both
  /// buffers are ordered by rank, and no part of the output may overlap another part of either.
  WorkPtr all_to_all(ByteParts input, std::span<const std::int64_t> send_counts,
                     MutableByteParts output, std::span<const std::int64_t> recv_counts,
                     Dtype dtype, const CollectiveOptions& options = {});
  /// The same; each buffer is in one part.
  WorkPtr all_to_all(std::span<const std::byte> input, std::span<const std::int64_t> send_counts,
                     std::span<std::byte> output, std::span<const std::int64_t> recv_counts,
                     Dtype dtype, const CollectiveOptions& options = {}) {
    return all_to_all(ByteParts{input}, send_counts, MutableByteParts{output}, recv_counts, dtype,
                      options);
  }
  /// The same, but what arrives is passed to `consume`, on the backend's thread, without a staging
  /// copy where ranks are threads. The call is done when all_gather with a consumer would be; but
  /// the consumer must return, as a deadline does not end it.
  WorkPtr all_to_all(ByteParts input, std::span<const std::int64_t> send_counts,
                     GatherConsumer consume, std::span<const std::int64_t> recv_counts, Dtype dtype,
                     const CollectiveOptions& options = {});
  /// Point to point. Matched with the peer's recv/send of the same queue and tag, in order of
  /// issue. Tags are at least 0 and, over MPI, below 2^28.
  WorkPtr send(std::span<const std::byte> input, int to, int tag, Dtype dtype,
               const CollectiveOptions& options = {});
  WorkPtr recv(std::span<std::byte> output, int from, int tag, Dtype dtype,
               const CollectiveOptions& options = {});
  WorkPtr barrier(const CollectiveOptions& options = {});
  /// A group of some of this group's ranks, ascending. Collective over the members only. All
  /// members must give the same ranks and the same name.
  std::shared_ptr<ProcessGroup> subgroup(std::span<const int> ranks, const std::string& name);
  /// While the returned object lives, this rank is excused: the others wait for it in this group
  /// without a deadline, or in all groups if this is the group of all ranks. `what` says what the
  /// rank does, such as "saving step 8", which takes as long as a disk takes. If it takes longer
  /// than the deadline, a warning names rank and seconds. Not collective. Null if there are no
  /// deadlines.
  std::shared_ptr<const void> excuse(std::string what) { return begin_excuse(std::move(what)); }

 protected:
  /// `ranks`: the members as ranks of the world, ascending; `rank`: this rank's place among them;
  /// `hosts`: the host of each, or empty where all share one.
  ProcessGroup(std::string name, std::vector<int> ranks, int rank, std::vector<int> hosts = {});

  /// Begins a call and returns at once. A call with a fault fails on all ranks.
  virtual WorkPtr issue(CollectiveCall call) = 0;
  /// `ranks`: of this group, as subgroup() has checked them. The group is ready on all members when
  /// this returns.
  virtual std::shared_ptr<ProcessGroup> make_subgroup(std::span<const int> ranks,
                                                      const std::string& name) = 0;
  virtual std::shared_ptr<const void> begin_excuse(std::string /*what*/) { return nullptr; }

  /// For a group that wraps another: issues the call there.
  static WorkPtr pass_on(ProcessGroup& group, CollectiveCall call);
  /// From now on, looks for NaN in the input of each reduction. A NaN makes the call fail on all
  /// ranks; it reads every input once more.
  void check_nan() { check_nan_ = true; }

 private:
  WorkPtr post(CollectiveCall call);
  WorkPtr number_and_issue(CollectiveCall call);
  void count_in(std::shared_ptr<TrafficLog> log);
  WorkPtr post_all_to_all(CollectiveCall call, std::span<const std::int64_t> send_counts,
                          std::span<const std::int64_t> recv_counts);
  CollectiveCall make_call(CollectiveOp op, const CollectiveOptions& options) const;
  CollectiveCall make_call(CollectiveOp op, std::span<const std::byte> bytes, Dtype dtype,
                           const CollectiveOptions& options) const;
  int world_rank(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }

  std::string name_;
  std::vector<int> ranks_;
  int rank_;
  std::vector<int> hosts_;
  bool check_nan_ = false;
  std::shared_ptr<TrafficLog> log_;   // shared with the groups that came from this
  std::shared_ptr<Traffic> traffic_;  // null if there is one rank
  std::mutex mutex_;
  // The calls so far, by queue and, for messages, by sender, receiver and tag.
  std::map<std::tuple<CollectiveQueue, int, int, int>, std::int64_t> issued_;
};

}  // namespace moegrad
