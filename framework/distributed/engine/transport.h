// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "framework/distributed/engine/engine_call.h"
#include "framework/runtime/arena.h"

namespace moegrad {

/// This rank's side of a group.
struct EngineGroup {
  std::int64_t id = 0;  // the same on all members
  std::string name = {};
  std::string label = {};       // "subgroup of ranks {0, 1}"
  std::vector<int> ranks = {};  // of the world
  int rank = 0;
};

/// Holds the mutex of a launch (LaunchState::mutex).
using EngineLock = std::unique_lock<std::mutex>;

/// Releases a lock while it lives.
class [[nodiscard]] Unlocked {
 public:
  explicit Unlocked(EngineLock& lock) : lock_(lock) { lock_.unlock(); }
  ~Unlocked() { lock_.lock(); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  EngineLock& lock_;
};

/// The fingerprint of a call, which goes ahead of its payload to every other rank of its line.
struct CallHeader {
  CollectiveRequest request;     // the group and queue are the line's
  std::int64_t received = 0;     // bytes that the sender receives from others
  std::int64_t deadline_ms = 0;  // how long the sender waits for the others
  std::int64_t group_id = 0;     // of the group that the sender would make, in make_group()
};

/// What a rank has said of its call to this one.
struct Arrival {
  const CallHeader* header = nullptr;  // null: it has not come yet
  // all_to_all: elements that the sender sends to this rank, and that it expects from it.
  std::int64_t sends = 0;
  std::int64_t expects = 0;
};

/// The payload of one call under way.
class Exchange {
 public:
  virtual ~Exchange() = default;

  /// Goes on, by about a piece; true if it got further. The lock is not held while bytes move.
  /// `delivered`: whether the modelled link has delivered; until then nothing is handed over.
  /// `may_send`: no payload of higher priority is under way.
  virtual bool poll(EngineLock& lock, bool delivered, bool may_send) = 0;
  /// This rank has all that it gets.
  bool executed() const { return executed_; }
  /// Nor does another rank need its buffers any more.
  virtual bool done() const = 0;
  /// Whether the rank of a slot has done its part, as far as is known here.
  virtual bool done_with(std::size_t slot) const = 0;
  /// Whether poll() would copy, sum or call a consumer, for which the rank's own thread is there.
  virtual bool has_work() const { return false; }
  /// Whether it has messages to send that have not begun to go.
  virtual bool has_more_to_send() const { return false; }
  /// What the consumer has thrown.
  const std::exception_ptr& thrown() const { return thrown_; }
  /// How long the rank has waited for others since the beginning.
  CollectiveClock::duration waited() const { return waited_; }
  /// After a failure: takes back what can be, and hands nothing over any more. done() then says
  /// when no message is under way.
  virtual void cancel() = 0;

 protected:
  bool executed_ = false;
  std::exception_ptr thrown_;
  CollectiveClock::duration waited_{0};
};

/// What connects a line to the same line of its other ranks. It carries one call at a time.
class Wire {
 public:
  virtual ~Wire() = default;

  /// Takes the memory that `call`, which is about to be posted, needs. MemoryBudgetError,
  /// OutOfMemoryError.
  virtual void reserve(EngineCall& /*call*/) {}
  /// Sends the header of the line's next call to all other slots.
  virtual void announce(const std::shared_ptr<EngineCall>& call, const CallHeader& header) = 0;
  /// What slot `from` has said of that call.
  virtual Arrival arrival(std::size_t from) = 0;
  /// Takes the call back; false if another rank may be about to read its buffers.
  virtual bool withdraw() = 0;
  /// Whether a payload is sent before it is received, and not read where it lies.
  virtual bool sends() const = 0;
  /// Begins to move the payload once all headers are there; null while a rank has taken its own
  /// call back.
  virtual std::unique_ptr<Exchange> begin(std::size_t piece_bytes) = 0;
  /// Whether what announce() sends to slot `to` has gone.
  virtual bool has_sent(std::size_t to) = 0;
  /// After a failure: takes back what can be. True when no other rank reads the call's buffers.
  /// `give_up`: it does not wait for the consumers of others.
  virtual bool abort(bool give_up) = 0;
};

/// Moves bytes between this rank and the others of one launch. Called with the launch's mutex held,
/// but for make_group() and wake_own(), and by the rank's own thread, unless any_thread().
class Transport {
 public:
  /// What send() takes.
  static constexpr std::size_t kLongestMessage = 16'384;

  virtual ~Transport() = default;

  /// The rank's, for payloads that wait for their place. Called before the first call is posted.
  virtual void set_arena(std::shared_ptr<Arena>) {}
  virtual std::unique_ptr<Wire> open(const EngineGroup& group, const LineKey& key,
                                     const Slots& slots) = 0;
  /// Sends a short message, beside the collectives.
  virtual void send(int rank, std::vector<std::byte> message) = 0;
  /// Passes on what has come; true if something has.
  virtual bool receive(
      const std::function<void(int from, std::span<const std::byte> message)>& hear) = 0;
  /// Something has been sent to ranks of the world, or what they have sent has been taken.
  virtual void wake(std::span<const int> ranks) = 0;
  /// Whether those ranks wake this one when they have sent something.
  virtual bool is_woken_by(std::span<const int> ranks) const = 0;
  /// The rank's own thread has something to do. By any thread.
  virtual void wake_own() = 0;
  /// Whether any thread may carry a call on: who posts it need not wait for the rank's own.
  virtual bool any_thread() const { return false; }
  /// Where any thread may: whether another rank has woken this one since the last call; and lets
  /// the rank's own thread look by a point in time at the latest.
  virtual bool take_wake() { return false; }
  virtual void sleep_until(CollectiveClock::time_point /*time*/) {}
  /// Whether a group can be made while calls of its parent are pending.
  virtual bool makes_groups_any_time() const = 0;
  /// Makes ready for lines of `group`. Collective over its members, which have met; blocks.
  virtual void make_group(const EngineGroup& group, const EngineGroup& parent,
                          std::span<const int> members) = 0;
  /// Where tags of messages must be below.
  virtual std::optional<int> most_tags() const = 0;
  /// After a failure: whether all messages have gone, and what others have sent has been taken.
  virtual bool drain() = 0;
  /// Nothing is sent or received any more, by this or any other object.
  virtual void abandon() = 0;
};

}  // namespace moegrad
