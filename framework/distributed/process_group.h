// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "framework/runtime/error.h"
#include "framework/tensor/dtype.h"

namespace moegrad {

/// A collective that cannot complete: mismatched calls, a missing or failed rank, a deadline.
/// The message names rank, operation, group and sequence number.
class CollectiveError : public Error {
 public:
  using Error::Error;
};

enum class ReduceOp : std::uint8_t { kSum, kMax };

/// A running collective. The call's buffers must stay valid until wait() has returned.
class Work {
 public:
  virtual ~Work() = default;
  /// Blocks until the collective is done. Throws what went wrong (CollectiveError, or the
  /// consumer's exception).
  virtual void wait() = 0;
  /// True if wait() would not block.
  virtual bool test() = 0;
};
using WorkPtr = std::shared_ptr<Work>;

/// The ordered queue that a call joins, and the label that errors and logs show.
struct CollectiveOptions {
  /// Calls of one queue of one group run in the order of issue, which is the same on every rank.
  /// Different queues do not wait for each other.
  std::string queue = "default";
  std::string label = {};
  /// Which repetition of the call this is, such as the number of a step. It is compared like the
  /// label, and shown if ranks differ.
  std::int64_t round = 0;
};

/// One buffer in several parts, which are read one after the other. Each part contains whole
/// elements. Ranks may cut their buffers differently.
using ByteParts = std::vector<std::span<const std::byte>>;

/// Every rank's input of an all-gather, in rank order, readable while the consumer runs.
using PeerSpans = std::span<const std::span<const std::byte>>;
using GatherConsumer = std::function<void(PeerSpans)>;

/// Collectives among the ranks of one group. Every call returns at once; the rank's communication
/// thread executes it. All ranks must issue the same calls in the same order per queue. Operation,
/// count and dtype are compared when the ranks meet. A mismatch is an error on all ranks.
///
/// Note [Reduction order]
/// Sums run along one fixed binary tree over the ranks, whatever the backend: the sum of ranks
/// [lo, hi) is the sum of [lo, mid) plus the sum of [mid, hi), mid - lo being the largest power of
/// two below hi - lo. GradientTree continues the same tree over micro-batches.
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const std::string& name() const = 0;
  /// The members as ranks of the world, ascending.
  virtual std::span<const int> ranks() const = 0;

  /// Passes the inputs of all ranks (equal sizes) to `consume`, on the communication thread,
  /// without a staging copy. The call is done when every rank's consumer has returned.
  virtual WorkPtr all_gather(std::span<const std::byte> input, Dtype dtype, GatherConsumer consume,
                             const CollectiveOptions& options = {}) = 0;
  /// output [n] = reduction over ranks of chunk rank() of input [size() * n].
  virtual WorkPtr reduce_scatter(ByteParts input, std::span<std::byte> output, Dtype dtype,
                                 ReduceOp op, const CollectiveOptions& options = {}) = 0;
  /// buffer [n] = reduction over ranks of buffer [n], in place.
  virtual WorkPtr all_reduce(std::span<std::byte> buffer, Dtype dtype, ReduceOp op,
                             const CollectiveOptions& options = {}) = 0;
  virtual WorkPtr broadcast(std::span<std::byte> buffer, int root, Dtype dtype,
                            const CollectiveOptions& options = {}) = 0;
  /// Sends send_counts[r] elements to each rank r and receives recv_counts[r] from it; both
  /// buffers are ordered by rank, and they must not overlap.
  virtual WorkPtr all_to_all(std::span<const std::byte> input,
                             std::span<const std::int64_t> send_counts, std::span<std::byte> output,
                             std::span<const std::int64_t> recv_counts, Dtype dtype,
                             const CollectiveOptions& options = {}) = 0;
  /// Point to point. Matched with the peer's recv/send of the same tag, in order of issue.
  virtual WorkPtr send(std::span<const std::byte> input, int to, int tag, Dtype dtype,
                       const CollectiveOptions& options = {}) = 0;
  virtual WorkPtr recv(std::span<std::byte> output, int from, int tag, Dtype dtype,
                       const CollectiveOptions& options = {}) = 0;
  virtual WorkPtr barrier(const CollectiveOptions& options = {}) = 0;
  /// A group of some of this group's ranks, ascending. Collective over the members only. All
  /// members must give the same ranks and the same name.
  virtual std::shared_ptr<ProcessGroup> subgroup(std::span<const int> ranks,
                                                 const std::string& name) = 0;
  /// While the returned object lives, this rank is excused: the others wait for it in this group
  /// without a deadline, or in all groups if this is the group of all ranks. `what` says what the
  /// rank does, such as "saving step 8", which takes as long as a disk takes. If it takes longer
  /// than the deadline, a warning names rank and seconds. Not collective. Null if there are no
  /// deadlines.
  virtual std::shared_ptr<const void> excuse([[maybe_unused]] std::string what) { return nullptr; }
};

}  // namespace moegrad
