// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "framework/distributed/collective_call.h"
#include "framework/distributed/collective_clock.h"
#include "framework/distributed/work.h"

namespace moegrad {

struct Channel;

/// A call of the thread backend: where it is, and how it ended. Guarded by the hub's mutex.
/// Its CollectiveTiming is complete when it is done.
struct ThreadCall : CollectiveCall, CollectiveTiming {
  explicit ThreadCall(CollectiveCall call) : CollectiveCall(std::move(call)) {}

  // Set when the call is posted: its channel, and its side of it.
  Channel* channel = nullptr;
  std::size_t slot = 0;
  std::int64_t number = 0;  // CollectiveHistory::add()

  CollectiveClock::time_point joins_at;   // the earliest time at which it takes its seat
  CollectiveClock::time_point begins_at;  // the earliest time at which it begins its first step
  int steps_begun = 0;
  bool inside_step = false;
  bool done = false;
  std::exception_ptr thrown;  // what this rank's consumer threw
  std::string error;          // otherwise, why it failed
  bool aborted = false;       // whether the error is the consequence of another failure
  std::condition_variable finished;
};

/// The number of steps that every rank executes. No rank begins a step before all ranks have ended
/// the previous one.
int num_steps(CollectiveOp op);

/// What the consumer of the side `slot` receives.
ByteParts inputs_of(std::span<ThreadCall* const> sides, std::size_t slot);

/// Executes step `step` of the side `slot`, after all sides have met. It reads the peers' memory.
/// Not for a side with a consumer, which is its step.
void run_step(std::span<ThreadCall* const> sides, std::size_t slot, int step,
              std::vector<std::byte>& scratch);

}  // namespace moegrad
