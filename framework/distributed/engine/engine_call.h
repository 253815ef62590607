// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "framework/distributed/collective_call.h"
#include "framework/distributed/collective_clock.h"
#include "framework/distributed/work.h"

namespace moegrad {

/// How far a call has come, as reports show it. Joined: it has said so to the other ranks, and
/// waits for them. Running, executed: the rank's own part.
enum class CallState : std::uint8_t {
  kIssued,
  kJoined,
  kRunning,
  kExecuted,
  kDone,
  kFailed,
  kGivenUp
};
const char* to_string(CallState state);

/// Names a line of calls: a queue of a group, or one side of the messages between two ranks of the
/// world with one tag.
struct LineKey {
  std::int64_t group = 0;  // EngineGroup::id
  CollectiveQueue queue = CollectiveQueue::kDefault;
  int from = -1;
  int to = -1;
  int tag = 0;
  int side = 0;  // of messages: 0 sends, 1 receives
  auto operator<=>(const LineKey&) const = default;
};

/// The same line where the other rank sees it.
LineKey across(LineKey key);

/// The ranks of a line, by slot: those of the group, or sender and receiver.
struct Slots {
  std::vector<int> world_ranks;
  std::size_t own = 0;

  std::size_t size() const { return world_ranks.size(); }
};

/// A call that an Engine executes: where it is, and how it ended. Its CollectiveTiming is complete
/// when it is done. Guarded by the launch's mutex once it is posted.
struct EngineCall : CollectiveCall, CollectiveTiming {
  explicit EngineCall(CollectiveCall call) : CollectiveCall(std::move(call)) {}

  // Set when the call is posted.
  LineKey line;
  std::int64_t number = 0;    // CollectiveHistory::add()
  std::uint64_t noted = 0;    // LastOperations::add()
  std::int64_t group_id = 0;  // that Engine::make_group() proposes; else 0
  CollectiveClock::time_point joins_at;
  // Memory that no one needs once the call has ended; who waits for the call takes it away.
  std::shared_ptr<const void> outgrown = nullptr;

  CallState state = CallState::kIssued;
  bool done = false;
  std::exception_ptr thrown;  // what this rank's consumer threw
  std::string error;          // otherwise, why it failed
  bool aborted = false;       // whether the error is the consequence of another failure
  std::condition_variable finished;
};

/// The request as headers carry it: members of a new group must agree on its name, too.
CollectiveRequest named(const EngineCall& call);

}  // namespace moegrad
