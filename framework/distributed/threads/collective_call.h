// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "framework/distributed/process_group.h"
#include "framework/profile/span.h"

namespace moegrad {

struct Channel;

using CollectiveClock = std::chrono::steady_clock;

enum class CollectiveOp : std::uint8_t {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kBroadcast,
  kAllToAll,
  kSend,
  kRecv,
  kBarrier
};

/// What a rank asked for, as messages show it.
struct CollectiveRequest {
  CollectiveOp op = CollectiveOp::kBarrier;
  Dtype dtype = Dtype::kFloat32;
  std::int64_t count = 0;  // elements of the input, or of the output if there is no input
  ReduceOp reduce = ReduceOp::kSum;
  int root = 0;
  std::string label;
  std::int64_t round = 0;

  // Set when the call is posted: its channel, its side of it, and its number there.
  Channel* channel = nullptr;
  std::size_t slot = 0;
  std::int64_t sequence = 0;
};

/// One rank's side of one collective of the thread backend: what was asked for, and how it ended.
struct CollectiveCall : CollectiveRequest {
  std::span<const std::byte> input;  // empty for recv and the reductions
  ByteParts parts;                   // the input of a reduction
  std::span<std::byte> output;       // the same memory as the input for all_reduce and broadcast
  std::vector<std::int64_t> send_counts;  // all_to_all only, as recv_counts
  std::vector<std::int64_t> recv_counts;
  GatherConsumer consume;

  // Guarded by the hub's mutex.
  CollectiveClock::time_point joins_at;   // the earliest time at which it takes its seat
  CollectiveClock::time_point begins_at;  // the earliest time at which it begins its first step
  int steps_begun = 0;
  bool inside_step = false;
  bool done = false;
  std::exception_ptr thrown;  // what this rank's consumer threw
  std::string error;          // otherwise, why it failed
  bool aborted = false;       // whether the error is the consequence of another failure
  std::condition_variable finished;

  // For the span log. Read these when the call is done.
  std::int64_t wire_bytes = 0;  // Channel::wire_bytes(), the most that any rank receives
  SpanClock::time_point met;    // when all ranks had joined
  SpanClock::time_point ended;
  std::chrono::nanoseconds busy{0};  // CPU time of this rank's steps
  std::chrono::nanoseconds work{0};  // until its own steps were done, from when all could begin
};

std::string_view to_string(CollectiveOp op);

/// Whether the operation is between two ranks: send and recv.
bool is_point_to_point(CollectiveOp op);
/// Whether the operation sums or compares elements: all_reduce and reduce_scatter.
bool is_reduction(CollectiveOp op);

/// The number of steps that every rank executes. No rank begins a step before all ranks have ended
/// the previous one.
int num_steps(CollectiveOp op);

/// "all_gather of 64 float32".
std::string signature(const CollectiveRequest& request);

/// Whether two sides of one collective agree.
bool agree(const CollectiveRequest& a, const CollectiveRequest& b);

/// What the consumers of an all_gather receive.
std::vector<std::span<const std::byte>> inputs_of(std::span<CollectiveCall* const> sides);

/// Executes step `step` of the side `slot`, after all sides have met. It reads the peers' memory.
/// Not for all_gather, whose step is its consumer.
void run_step(std::span<CollectiveCall* const> sides, std::size_t slot, int step,
              std::vector<std::byte>& scratch);

}  // namespace moegrad
