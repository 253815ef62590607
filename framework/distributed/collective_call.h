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
#include "framework/runtime/span.h"

namespace moegrad {

struct Channel;

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

/// One rank's side of one collective of the thread backend: what was asked for, and how it ended.
struct CollectiveCall {
  CollectiveOp op = CollectiveOp::kBarrier;
  Dtype dtype = Dtype::kFloat32;
  std::int64_t count = 0;            // elements of `input`, or of `output` where there is no input
  std::span<const std::byte> input;  // empty for recv
  std::span<std::byte> output;       // the same memory as `input` for all_reduce and broadcast
  ReduceOp reduce = ReduceOp::kSum;
  int root = 0;
  int peer = 0;
  int tag = 0;
  std::vector<std::int64_t> send_counts;  // all_to_all only, as recv_counts
  std::vector<std::int64_t> recv_counts;
  GatherConsumer consume;
  std::string label;

  // Set when the call is posted: its channel, its side of it, and its number there.
  Channel* channel = nullptr;
  std::size_t slot = 0;
  std::int64_t sequence = 0;

  // Guarded by the hub's mutex.
  int steps_begun = 0;
  bool done = false;
  std::exception_ptr thrown;  // what this rank's consumer threw
  std::string error;          // otherwise, why it failed
  bool aborted = false;       // the error is the consequence of another failure
  std::condition_variable finished;

  // For the span log; to be read when done.
  std::int64_t wire_bytes = 0;  // received over the link
  SpanClock::time_point met;    // when all ranks had joined
  SpanClock::time_point ended;
  std::chrono::nanoseconds busy{0};  // CPU time of this rank's steps
};

std::string_view to_string(CollectiveOp op);

bool is_point_to_point(CollectiveOp op);

/// Steps that every rank executes; nobody begins a step before all have ended the previous one.
int num_steps(CollectiveOp op);

/// "all_gather of 64 float32".
std::string signature(const CollectiveCall& call);

/// "all_gather [group world, sequence 3, layers.1]".
std::string describe(const CollectiveCall& call, const std::string& group);

/// Whether two sides of one collective agree.
bool agree(const CollectiveCall& a, const CollectiveCall& b);

/// Executes step `step` of the side `slot`, all sides having met; reads the peers' memory.
void run_step(std::span<CollectiveCall* const> sides, std::size_t slot, int step,
              std::vector<std::byte>& scratch);

}  // namespace moegrad
