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

/// A collective under way. The call's buffers must stay valid until wait() has returned.
class Work {
 public:
  virtual ~Work() = default;
  /// Blocks until done; throws what went wrong (CollectiveError, or the consumer's exception).
  virtual void wait() = 0;
  /// True when wait() would not block.
  virtual bool test() = 0;
};
using WorkPtr = std::shared_ptr<Work>;

/// Which ordered queue a call joins, and what errors and logs call it.
struct CollectiveOptions {
  /// Calls of one queue of one group run in the order of issue, on every rank the same; different
  /// queues do not wait for each other.
  std::string queue = "default";
  std::string label = {};
  /// Which repetition of the call this is, such as the number of a step: compared as the label is,
  /// and shown where ranks differ.
  std::int64_t round = 0;
};

/// One buffer in parts, read one after the other, of whole elements each; the ranks need not cut
/// theirs alike.
using ByteParts = std::vector<std::span<const std::byte>>;

/// Every rank's input of an all-gather, in rank order, readable while the consumer runs.
using PeerSpans = std::span<const std::span<const std::byte>>;
using GatherConsumer = std::function<void(PeerSpans)>;

/// Collectives among the ranks of one group. Every call returns at once; the rank's communication
/// thread executes it. All ranks must issue the same calls in the same order per queue: operation,
/// count and dtype are compared when the ranks meet, and a mismatch is an error on all of them.
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

  /// Hands `consume` the inputs of all ranks (equal sizes), on the communication thread, without a
  /// staging copy. Done when every rank's consumer has returned.
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
  /// Point to point; matched with the peer's recv/send of the same tag in order of issue.
  virtual WorkPtr send(std::span<const std::byte> input, int to, int tag, Dtype dtype,
                       const CollectiveOptions& options = {}) = 0;
  virtual WorkPtr recv(std::span<std::byte> output, int from, int tag, Dtype dtype,
                       const CollectiveOptions& options = {}) = 0;
  virtual WorkPtr barrier(const CollectiveOptions& options = {}) = 0;
  /// A group of some of this group's ranks, ascending. Collective over the members alone; each
  /// member names the same ranks and the same name.
  virtual std::shared_ptr<ProcessGroup> subgroup(std::span<const int> ranks,
                                                 const std::string& name) = 0;
  /// While what is returned lives, no deadline counts in which others wait for this rank in this
  /// group, or, if it is the group of all ranks, in any group: the rank does `what`, such as
  /// "saving step 8", which takes as long as a disk takes. Longer than the deadline is a warning
  /// that names rank and seconds. Not collective. Null where there are no deadlines.
  virtual std::shared_ptr<const void> excuse([[maybe_unused]] std::string what) { return nullptr; }
};

}  // namespace moegrad
