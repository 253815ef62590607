// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "framework/distributed/link_model.h"
#include "framework/distributed/rendezvous.h"

namespace moegrad {

/// What the rank threads of one launch share: their groups, the channels they meet in, and one
/// communication thread per rank that executes the steps of its rank's calls.
///
/// Note [Rendezvous of rank threads]
/// All bookkeeping is under one mutex and is done by whoever causes it: a posted call that is the
/// oldest of its channel takes its seat at once, and the call that takes the last seat opens the
/// meeting. Communication threads only execute steps, outside the mutex: each looks over the heads
/// of all its rank's channels, runs what is ready, and otherwise sleeps until it is notified, a
/// modelled link delivers, or a deadline passes. So no channel waits for another.
///
/// The first failure of any kind poisons the hub: every pending call ends with an error that says
/// so, every later call throws. A failed call still ends only when no step of its meeting is
/// running, because such a step may be reading its buffers.
///
/// For the same reason a Work that goes out of scope unwaited blocks until its call has ended; and
/// if an exception takes it out of scope before a step has begun, the call is withdrawn. Its
/// rank then fails by that exception, or, if it caught it and goes on, with its next call.
class ThreadHub {
 public:
  ThreadHub(int world_size, std::chrono::milliseconds deadline, const LinkModel& link);
  ~ThreadHub();
  ThreadHub(const ThreadHub&) = delete;
  ThreadHub& operator=(const ThreadHub&) = delete;

  /// Starts the communication threads.
  void start();
  /// Ends them, after the bodies of all ranks have ended; later calls throw.
  void stop();

  const std::shared_ptr<GroupState>& world() const { return world_; }
  /// The state that members of a subgroup share; they have not met yet.
  std::shared_ptr<GroupState> join_group(const std::string& name, std::vector<int> ranks);

  /// Throws CollectiveError if the hub has failed.
  void post(GroupState& group, const ChannelKey& key, std::size_t slot,
            const std::shared_ptr<CollectiveCall>& call);
  /// Blocks until the call has ended; throws its error.
  void wait(CollectiveCall& call);
  bool test(const CollectiveCall& call);
  /// The call's Work went out of scope.
  void release(CollectiveCall& call, bool unwinding) noexcept;

  /// The body of `rank` threw, or returned.
  void rank_failed(int rank, const std::string& what);
  void rank_left(int rank);

 private:
  struct Rank {
    std::vector<std::pair<Channel*, std::size_t>> channels;  // with the rank's slot in each
    std::condition_variable wake;
    bool left = false;
    std::string withdrawn;  // a call that an exception took out of scope
    std::thread thread;
  };
  using Lock = std::unique_lock<std::mutex>;

  // All of these are called with the mutex held.
  Channel& channel_of(GroupState& group, const ChannelKey& key);
  Rank& rank_of(const Channel& channel, std::size_t slot);
  void take_seat(Channel& channel, std::size_t slot);
  void check_for_the_departed(const Channel& channel);
  void advance(Channel& channel);
  void conclude(Channel& channel);
  bool withdraw(CollectiveCall& call);
  void fail(const std::string& cause, const Channel* origin = nullptr);
  void end_failed_calls(Channel& channel);
  void wake_ranks(const Channel& channel);

  // The communication thread. poll() returns whether it did something, and lowers `wake_at`.
  void serve(Rank& rank);
  bool poll(Lock& lock, Channel& channel, std::size_t slot, std::vector<std::byte>& scratch,
            CollectiveClock::time_point& wake_at);
  void execute_step(Lock& lock, Channel& channel, std::size_t slot,
                    std::vector<std::byte>& scratch);

  const std::chrono::milliseconds deadline_;
  const LinkModel link_;
  std::shared_ptr<GroupState> world_;

  std::mutex mutex_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<std::shared_ptr<GroupState>> groups_;  // ranks point to their channels
  std::string failure_;  // of the first failure; empty while all is well
  bool stopped_ = false;
};

}  // namespace moegrad
