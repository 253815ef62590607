// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "framework/distributed/launch_options.h"
#include "framework/distributed/threads/meetings.h"
#include "framework/distributed/threads/rendezvous.h"
#include "framework/runtime/log.h"

namespace moegrad {

/// What the rank threads of one launch share: their groups, the channels they meet in, and one
/// communication thread per rank that executes the steps of its rank's calls.
///
/// Note [Rendezvous of rank threads]
/// All bookkeeping (Meetings) is under one mutex and is done by whoever causes it: a posted call
/// that is the oldest of its channel takes its seat at once, and the call that takes the last seat
/// opens the meeting. Communication threads execute steps, outside the mutex: each looks over the
/// heads of all its rank's channels, runs what is ready, and otherwise sleeps until it is notified,
/// a modelled link delivers, or a call that jitter delays is due. So no channel waits for another.
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

  const std::shared_ptr<GroupState>& world() const { return meetings_.world; }
  /// The state that members of a subgroup share; they have not met yet.
  std::shared_ptr<GroupState> join_group(const std::string& name, std::vector<int> ranks);

  /// Throws CollectiveError if the hub has failed, or if the call has a fault.
  void post(GroupState& group, const ChannelKey& key, std::size_t slot,
            const std::shared_ptr<ThreadCall>& call);
  /// Blocks until the call has ended, well or not.
  void wait(ThreadCall& call);
  bool test(const ThreadCall& call);
  /// What went wrong with a call that has ended.
  std::exception_ptr failure(const ThreadCall& call);
  bool checks_nan() const { return meetings_.options.check_nan; }
  /// Called when the call's Work goes out of scope.
  void release(ThreadCall& call, bool unwinding) noexcept;

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
  using Lock = std::unique_lock<std::mutex>;
  /// The communication thread of one rank.
  struct Server {
    std::thread thread;
    bool served = false;  // it has ended
  };

  // The communication thread of rank `index`. poll() returns whether it did something, and lowers
  // `wake_at`. What takes a Lock is called with it held.
  void serve(std::size_t index);
  bool poll(Lock& lock, Channel& channel, std::size_t slot, std::vector<std::byte>& scratch,
            CollectiveClock::time_point& wake_at);
  void execute_step(Lock& lock, Channel& channel, std::size_t slot,
                    std::vector<std::byte>& scratch);

  // The watching thread.
  void watch(LogLevel log_level);
  void warn_of_excuses(Lock& lock, CollectiveClock::time_point now);
  void watch_the_stuck(Lock& lock, CollectiveClock::duration passed);

  std::mutex mutex_;
  Meetings meetings_;
  std::vector<Server> servers_;

  CollectiveClock::duration since_failure_{0};  // as RunningClock::elapsed()
  bool reported_stuck_ = false;
  bool joined_ = false;  // no communication thread is left
  std::condition_variable unwatched_;
  std::thread watcher_;
};

}  // namespace moegrad
