// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <compare>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include "framework/distributed/collective_call.h"
#include "framework/distributed/collective_clock.h"
#include "framework/distributed/work.h"

namespace moegrad::mpi {

/// How far a call has come, as reports show it.
enum class CallState : std::uint8_t { kIssued, kJoined, kRunning, kDone, kFailed, kGivenUp };
const char* to_string(CallState state);

/// Names a line of calls: a queue of a group, or one side of the messages between two ranks of the
/// world with one tag.
struct LineKey {
  std::int64_t group = 0;  // MpiGroup::id
  CollectiveQueue queue = CollectiveQueue::kDefault;
  int from = -1;
  int to = -1;
  int tag = 0;
  int side = 0;  // of messages: 0 sends, 1 receives
  auto operator<=>(const LineKey&) const = default;
};

/// The same line where the other rank sees it.
LineKey across(LineKey key);

/// A call of the MPI backend: where it is, and how it ended. Its CollectiveTiming is complete when
/// it is done.
struct MpiCall : CollectiveCall, CollectiveTiming {
  explicit MpiCall(CollectiveCall call) : CollectiveCall(std::move(call)) {}

  // Set when the call is posted.
  LineKey line;
  std::int64_t number = 0;    // CollectiveHistory::add()
  std::uint64_t noted = 0;    // LastOperations::add()
  std::int64_t group_id = 0;  // that make_subgroup() proposes; else 0
  CollectiveClock::time_point joins_at;

  std::atomic<CallState> state = CallState::kIssued;

  // Guarded by the hub's mutex.
  bool done = false;
  std::exception_ptr thrown;  // what this rank's consumer threw
  std::string error;          // otherwise, why it failed
  bool aborted = false;       // whether the error is the consequence of another failure
  std::condition_variable finished;
};

}  // namespace moegrad::mpi
