// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "framework/distributed/collective_history.h"
#include "framework/distributed/launch_options.h"
#include "framework/distributed/running_clock.h"
#include "framework/distributed/threads/rendezvous.h"
#include "framework/runtime/log.h"

namespace moegrad {

/// What the rank threads of one launch share: their groups, the channels they meet in, and one
/// communication thread per rank that executes the steps of its rank's calls.
///
/// Note [Rendezvous of rank threads]
/// All bookkeeping is done under one mutex, by the thread that causes it. A posted call that is the
/// oldest of its channel takes its seat at once. The call that takes the last seat opens the
/// meeting. Communication threads execute steps, outside the mutex. Each looks at the heads of all
/// channels of its rank and runs what is ready. Otherwise it sleeps until it is notified, a
/// modelled link delivers, or a call that jitter delays is due. So no channel waits for another.
///
/// A watching thread counts deadlines. It wakes every few milliseconds and adds the time that has
/// passed to the running time, but no more than it meant to sleep (RunningClock). It postpones the
/// deadlines of meetings in which an excused rank is missing. It notifies the ranks of meetings
/// whose deadline has passed. It also handles ranks that do not return after a failure.
///
/// The first failure of any kind poisons the hub: every pending call ends with an error that says
/// so, and every later call throws. A failed call still ends only when no step of its meeting is
/// running, because such a step may be reading its buffers. If a rank's consumer does not return,
/// that would be never. So once the deadline has passed since the step began, the calls of the
/// other ranks end without it. If the consumer returns after all, their buffers may be gone.
///
/// For the same reason a Work that goes out of scope unwaited blocks until its call has ended. If
/// an exception takes it out of scope before a step has begun, the call is withdrawn. Its rank then
/// fails by that exception. If the rank catches the exception and goes on, its next call fails.
///
/// The first failure also records what each rank did last. The first rank that ends because of the
/// failure reports it, outside the mutex and at its own log level.
class ThreadHub {
 public:
  ThreadHub(int world_size, LaunchOptions options);
  ~ThreadHub();
  ThreadHub(const ThreadHub&) = delete;
  ThreadHub& operator=(const ThreadHub&) = delete;

  /// Starts the communication threads and the watching thread, which logs at `log_level`.
  void start(LogLevel log_level);
  /// Ends these threads, after the bodies of all ranks have ended. Later calls throw.
  void stop();

  const std::shared_ptr<GroupState>& world() const { return world_; }
  /// The state that the members of a subgroup share. The members have not met yet.
  std::shared_ptr<GroupState> join_group(const std::string& name, std::vector<int> ranks);

  /// Throws CollectiveError if the hub has failed.
  void post(GroupState& group, const ChannelKey& key, std::size_t slot,
            const std::shared_ptr<CollectiveCall>& call);
  /// Blocks until the call has ended; throws its error.
  void wait(CollectiveCall& call);
  bool test(const CollectiveCall& call);
  /// Called when the call's Work goes out of scope.
  void release(CollectiveCall& call, bool unwinding) noexcept;

  /// Called when the body of `rank` has thrown, or returned.
  void rank_failed(int rank, const std::string& what);
  void rank_left(int rank);

  /// ProcessGroup::excuse() of a rank in the world.
  static std::shared_ptr<const void> excuse(const std::shared_ptr<ThreadHub>& self,
                                            const GroupState& group, int rank, std::string what);

  /// Passes the report of a failure to LaunchOptions::on_failure, if there is one that has not been
  /// reported.
  void report_failure();

 private:
  struct Excuse {
    const GroupState* group;
    std::string what;  // empty inside another excuse of the same group
    CollectiveClock::time_point since;
    CollectiveClock::time_point warns_at;
  };
  struct Rank {
    std::vector<std::pair<Channel*, std::size_t>> channels;  // with the rank's slot in each
    std::condition_variable wake;
    CollectiveHistory history;
    std::list<Excuse> excuses;
    bool left = false;
    bool served = false;                         // the communication thread has ended
    std::optional<CollectiveRequest> withdrawn;  // a call that an exception took out of scope
    std::thread thread;
  };
  using Lock = std::unique_lock<std::mutex>;

  // All these functions are called with the mutex held.
  Channel& channel_of(GroupState& group, const ChannelKey& key);
  Rank& rank_of(const Channel& channel, std::size_t slot);
  CollectiveClock::duration jitter(const CollectiveRequest& request, int draw) const;
  void take_seat(Channel& channel, std::size_t slot);
  void open_meeting(Channel& channel);
  void check_for_the_departed(const Channel& channel);
  void advance(Channel& channel);
  void conclude(Channel& channel);
  bool withdraw(CollectiveCall& call);
  /// Poisons the hub, once. The calls of the same meeting as `origin` fail by themselves; all other
  /// calls fail because of it.
  void fail(const std::string& cause, const CollectiveRequest* origin = nullptr);
  void fail_by_exception(int rank, const std::string& what);
  void fail_by_withdrawal(int rank);
  void end_failed_calls(Channel& channel);
  std::string history() const;
  void wake_ranks(const Channel& channel);

  // The communication thread. poll() returns whether it did something, and lowers `wake_at`.
  void serve(Rank& rank);
  bool poll(Lock& lock, Channel& channel, std::size_t slot, std::vector<std::byte>& scratch,
            CollectiveClock::time_point& wake_at);
  void execute_step(Lock& lock, Channel& channel, std::size_t slot,
                    std::vector<std::byte>& scratch);
  void fail_to_join(Channel& channel);
  void give_up_step(Channel& channel);

  // The watching thread.
  void watch(LogLevel log_level);
  bool is_excused(const GroupState& group, const Channel& channel);
  void warn_of_excuses(Lock& lock, CollectiveClock::time_point now);
  void watch_the_stuck(Lock& lock, CollectiveClock::duration passed);

  const LaunchOptions options_;
  std::shared_ptr<GroupState> world_;

  std::mutex mutex_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<std::shared_ptr<GroupState>> groups_;  // ranks point to their channels
  std::string failure_;                              // the first failure; empty if none
  std::string report_;       // its report; empty again when it has been reported
  bool rank_threw_ = false;  // whether the first failure was an exception of a rank
  bool stopped_ = false;

  CollectiveClock::duration running_{0};        // RunningClock::elapsed()
  CollectiveClock::duration since_failure_{0};  // running time since the first failure
  bool reported_stuck_ = false;
  bool joined_ = false;  // no communication thread is left
  std::condition_variable unwatched_;
  std::thread watcher_;
};

}  // namespace moegrad
