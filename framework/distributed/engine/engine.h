// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "framework/distributed/collective_history.h"
#include "framework/distributed/engine/last_operations.h"
#include "framework/distributed/engine/launch_state.h"
#include "framework/distributed/engine/line.h"
#include "framework/distributed/engine/shared_link.h"
#include "framework/distributed/excuses.h"
#include "framework/runtime/byte_stream.h"

namespace moegrad {

/// A collective that failed only because something else failed before it: another rank, or another
/// collective. launch() reports the original failure instead.
class AbortedError final : public CollectiveError {
 public:
  using CollectiveError::CollectiveError;
};

inline constexpr std::size_t kQueues = static_cast<std::size_t>(CollectiveQueue::kOddTiles) + 1;

/// One rank's side of a launch: its groups, its lines of calls, and how it failed.
///
/// Note [The engine of collectives]
/// Every rank has an engine and a thread of its own beside those of its body. The body posts calls;
/// each stands in a line with the others of its queue. The oldest of a line first sends its header
/// to all other ranks of the line: operation, dtype, count, label, number. A rank that has the
/// headers of all others knows that all have joined, and compares them with its own; a rank that
/// lacks a header knows which rank has not come. Then the payload moves (Exchange), and the call is
/// done on a rank when it has all that it gets and no one needs its buffers any more. No line waits
/// for another.
///
/// How bytes come from one rank to another is a Transport's business. Where ranks are threads, a
/// rank reads the others' memory, and whoever posts or ends something carries on what waited for
/// that, on whatever rank: the ranks' own threads are left what takes time. Where they are
/// processes, their own threads send messages, and do everything.
///
/// Besides, ranks tell each other: the first failure, that a body has returned, and, when a
/// deadline comes near, whether a missing rank is excused. A rank that does not answer counts as
/// not excused: its process may be stopped.
///
/// The first failure of any kind poisons the launch on all ranks: every pending call ends with an
/// error that says so, and every later call throws. A failed call ends only when no one reads or
/// writes its buffers any more. If another rank's consumer does not return, that would be never. So
/// once the deadline has passed since the payload began, the call ends without it. If the consumer
/// returns after all, the buffers may be gone.
///
/// For the same reason a Work that goes out of scope unwaited blocks until its call has ended; in a
/// consumer, which must not wait, it fails the launch first. If an exception takes it out of scope
/// before others may read its buffers, the call is withdrawn. Its rank then fails by that
/// exception. If the rank catches the exception and goes on, its next call fails.
class Engine {
 public:
  Engine(std::shared_ptr<LaunchState> launch, int rank, std::unique_ptr<Transport> transport);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // For the threads of the rank.

  int rank() const { return rank_; }
  const LaunchOptions& options() const { return launch_->options; }
  LaunchState& launch() { return *launch_; }
  Transport& transport() { return *transport_; }
  const std::shared_ptr<EngineGroup>& world() const { return world_; }
  /// Collective over `members`, which are ranks of `parent`.
  std::shared_ptr<EngineGroup> make_group(const std::shared_ptr<EngineGroup>& parent,
                                          std::span<const int> members, const std::string& name);
  /// Throws CollectiveError if the launch has failed, or if the call has a fault.
  void post(const EngineGroup& group, const std::shared_ptr<EngineCall>& call);
  /// Blocks until the call has ended, well or not.
  void wait(EngineCall& call);
  bool test(const EngineCall& call);
  /// What went wrong with a call that has ended.
  std::exception_ptr failure(const EngineCall& call);
  /// Called when the call's Work goes out of scope.
  void release(EngineCall& call, bool unwinding) noexcept;
  /// The body has thrown; it has ended, well or not.
  void body_failed(const std::string& what);
  void body_ended();
  LastOperations& last_operations() { return last_operations_; }
  /// After a failure: writes what the rank did last to its file.
  void write_last_operations();

  // For the rank's own thread, with the mutex held.

  struct Activity {
    bool progress = false;   // something has moved
    bool waits = false;      // for messages
    bool unwoken = false;    // for some of them nobody will wake this rank
    bool left_work = false;  // for the rank's own thread
    CollectiveClock::time_point wake_at = CollectiveClock::time_point::max();
  };
  /// Carries all lines on. `works`: this is the rank's own thread.
  Activity poll(EngineLock& lock, bool works);
  /// Whether calls are pending.
  bool has_pending() const { return !pending_.empty(); }
  /// Ends what is left.
  void close();
  /// After a failure: no message is under way, or none will be any more.
  bool is_quiet() const { return quiet_; }
  bool is_abandoned() const { return abandoned_; }
  /// After a failure: the transport is used no more, so that calls can end.
  void abandon();
  /// The body and all calls have ended, and this rank waits for no answer: it sends nothing any
  /// more.
  bool has_said_all() const { return told_end_ && unanswered_ == 0 && pending_.empty(); }
  /// Nothing comes any more from the others, which have said all, too.
  bool has_heard_all() const { return ends_heard_ == launch_->world_size - 1; }

  // For LaunchState, with the mutex held.

  std::vector<HistoryLine> history() const;
  /// Gives every pending call the error of the launch's failure.
  void mark_failed();
  Excuses& excuses() { return excuses_; }
  /// Whether the body, or after it the rank's own thread, has not returned.
  bool is_stuck() const { return !body_ended_ || (serves_ && launch_->stopped); }
  void set_serves(bool serves) { serves_ = serves; }

  // For lines, with the mutex held.

  bool has_failed() const { return launch_->has_failed(); }
  CollectiveClock::duration running() const { return launch_->running(); }
  bool any_has_left() const { return ends_heard_ > 0; }
  CollectiveClock::duration jitter(const EngineCall& call, int draw) const;
  SharedLink& link() { return link_; }
  void set_state(EngineCall& call, CallState state);
  /// Poisons the launch, once. `origin`: the call that has found the failure.
  void fail(const std::string& cause, const EngineCall& origin);
  void fail_by_consumer(EngineCall& call, std::exception_ptr thrown);
  void ask(int rank, const LineKey& line, std::int64_t sequence, CollectiveClock::duration waited);
  /// The call has ended.
  void conclude(EngineCall& call);
  /// While one lives, this thread runs a consumer.
  class StepGuard {
   public:
    explicit StepGuard(const EngineCall& call);
    ~StepGuard();
    StepGuard(const StepGuard&) = delete;
    StepGuard& operator=(const StepGuard&) = delete;

   private:
    const EngineCall* outer_;
  };

 private:
  void fail_by_withdrawal();
  void fail_by_drop(const EngineCall& call);
  void end_in_consumer(EngineLock& lock, const EngineCall& call);
  void check_meeting(const EngineCall& call, const std::vector<int>& ranks);
  void hear(int from, std::span<const std::byte> message);
  void hear_failure(ByteReader& reader);
  void take_heard_failure(bool progress);
  void hear_history(int from, ByteReader& reader);
  void hear_question(int from, ByteReader& reader);
  void hear_answer(int from, ByteReader& reader);
  void tell(int rank, std::vector<std::byte> message);
  bool is_elsewhere(int rank) const;
  void tell_end();
  void tell_failure();
  void poll_lines(EngineLock& lock, bool works, Activity& activity);
  void poll_failed(EngineLock& lock);
  void execute_alone(EngineLock& lock, const std::shared_ptr<EngineCall>& call);
  void execute_later(EngineLock& lock);
  void carry_on(EngineLock& lock);
  Line& open_line(const EngineGroup& group, const LineKey& key, Slots slots);
  Line& line_of(const LineKey& key);
  Slots slots_of(const EngineGroup& group, const LineKey& key) const;
  bool has_issued(const LineKey& key, std::int64_t sequence) const;
  void conclude_all();

  const std::shared_ptr<LaunchState> launch_;
  const int rank_;
  const std::shared_ptr<EngineGroup> world_;
  const std::unique_ptr<Transport> transport_;
  LastOperations last_operations_;
  std::mutex makes_group_;  // held by the thread that makes one
  std::thread::id own_thread_;

  // Guarded by the launch's mutex.
  std::list<std::shared_ptr<EngineCall>> pending_;
  std::vector<std::shared_ptr<EngineCall>> alone_later_;  // posted by consumers
  CollectiveHistory history_;
  std::optional<CollectiveHistory::Entry> withdrawn_;
  Excuses excuses_;
  SharedLink link_;
  std::map<std::int64_t, std::shared_ptr<EngineGroup>> groups_;
  std::map<LineKey, std::unique_ptr<Line>> lines_;
  std::vector<Line*> in_order_;             // of priority
  std::map<LineKey, std::int64_t> issued_;  // calls so far
  std::int64_t groups_made_ = 0;
  std::optional<Failure> heard_failure_;  // of another rank
  CollectiveClock::time_point heard_at_;
  CollectiveClock::duration told_failure_at_{0};  // running time
  bool told_failure_ = false;
  bool body_ended_ = false;
  bool serves_ = false;
  bool told_end_ = false;
  int ends_heard_ = 0;
  std::int64_t unanswered_ = 0;  // questions
  bool quiet_ = false;
  bool abandoned_ = false;
};

}  // namespace moegrad
