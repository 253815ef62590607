// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "framework/distributed/engine/transport.h"

namespace moegrad {

class Engine;

/// An ordered line of calls, which are executed one after the other. The oldest exchanges headers
/// with all other ranks of its slots. When they agree, it moves its payload.
///
/// All of it is called with the launch's mutex held.
class Line {
 public:
  /// One look at a line: what it may do, and what it found.
  struct Turn {
    CollectiveClock::time_point now;
    bool works = true;     // it is the rank's own thread, which copies, sums and calls consumers
    bool may_send = true;  // no payload of higher priority is under way
    /// When the line must be looked at again at the latest.
    CollectiveClock::time_point wake_at = CollectiveClock::time_point::max();
    bool left_work = false;  // for the rank's own thread
  };

  Line(Engine& engine, LineKey key, Slots slots, std::unique_ptr<Wire> wire);

  /// Takes the memory that the call, which comes next, needs.
  void reserve(EngineCall& call) { wire_->reserve(call); }
  void add(std::shared_ptr<EngineCall> call);
  /// Carries the oldest call on by a step; true if it got further.
  bool poll(EngineLock& lock, Turn& turn);
  const LineKey& key() const { return key_; }
  int priority() const { return priority_; }
  bool empty() const { return calls_.empty(); }
  /// Whether the oldest call waits for other ranks, and not for a point in time.
  bool waits_for_messages() const;
  /// Whether it needs no poll before a point in time, or before a rank wakes this one.
  bool will_be_woken() const;
  /// Whether a payload is under way.
  bool is_moving() const { return phase_ == Phase::kTransfer && !exchange_->executed(); }
  bool has_more_to_send() const { return is_moving() && exchange_->has_more_to_send(); }
  /// No call is there, and no header is under way: the line can be forgotten.
  bool has(int world_rank) const;
  bool is_idle() { return calls_.empty() && !busy_ && headers_sent(); }
  /// Takes back the oldest call, which the rank gives up. False if others need its buffers.
  bool withdraw(const EngineCall& call);

  /// What the rank `world_rank` says about a call for which the line waits (Engine::ask).
  struct Answer {
    std::int64_t sequence = 0;
    CollectiveClock::duration excused{0};
    bool has_issued = false;
    bool has_left = false;
  };
  void hear(int world_rank, const Answer& answer);
  /// A rank has left: asks at once whether what the line waits for can still come.
  void ask_at_once();

  /// After a failure: ends what can be ended. True when nothing of the line is under way.
  bool abort(EngineLock& lock);
  /// The same where the process uses its transport no more.
  void abandon();

  /// The group that slot 0 has proposed (Engine::make_group).
  std::int64_t proposed_group() const { return proposed_group_; }

 private:
  enum class Phase { kIdle, kHeaders, kDelayed, kTransfer };
  struct Peer {
    bool arrived = false;
    CollectiveClock::duration excused{0};
    bool asked = false;  // and has not answered
  };

  bool announce(const std::shared_ptr<EngineCall>& call);
  bool take_arrivals(const EngineCall& call);
  std::string disagreement(const EngineCall& call, std::size_t slot, const Arrival& arrival) const;
  bool meet(EngineCall& call, Turn& turn);
  void begin_on_link(EngineCall& call, CollectiveClock::time_point now);
  bool is_delivered(Turn& turn);
  bool begin_payload(EngineCall& call);
  bool transfer(EngineLock& lock, EngineCall& call, Turn& turn);
  void note_executed(EngineCall& call);
  void end_call(EngineCall& call);
  bool watch_headers(EngineCall& call, Turn& turn);
  void give_up_payload(const EngineCall& call);
  bool headers_sent();
  void leave_link();
  std::vector<int> ranks_that(bool arrived) const;

  Engine& engine_;
  LineKey key_;
  Slots slots_;
  std::unique_ptr<Wire> wire_;
  int priority_;
  std::deque<std::shared_ptr<EngineCall>> calls_;  // oldest first
  bool busy_ = false;                              // a thread moves bytes, without the lock

  // The state of the oldest call.
  Phase phase_ = Phase::kIdle;
  CallHeader header_;
  std::vector<Peer> peers_;  // by slot
  std::unique_ptr<Exchange> exchange_;
  CollectiveClock::duration deadline_{0};      // the longest that one of the ranks here has
  std::int64_t most_received_ = 0;             // from others, over the ranks
  CollectiveClock::duration waits_since_{0};   // running time
  CollectiveClock::duration asks_at_{0};       // running time
  CollectiveClock::duration expires_{0};       // running time by which the payload must have gone
  CollectiveClock::time_point begins_at_;      // by jitter
  std::optional<std::uint64_t> on_link_;       // SharedLink::begin()
  CollectiveClock::time_point usually_there_;  // by the modelled link, on a rank that is not slow
  bool cancelled_ = false;
  std::int64_t proposed_group_ = 0;
};

}  // namespace moegrad
