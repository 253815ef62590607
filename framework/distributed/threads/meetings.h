// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "framework/distributed/collective_history.h"
#include "framework/distributed/excuses.h"
#include "framework/distributed/launch_options.h"
#include "framework/distributed/threads/rendezvous.h"

namespace moegrad {

/// The bookkeeping of a launch: which calls wait in which channel, which meetings are on and how
/// far, and what the first failure was (Note [Rendezvous of rank threads]). It starts no thread and
/// never blocks. All of it is guarded by the hub's mutex, which callers hold.
struct Meetings {
  struct Rank {
    explicit Rank(Excuses own_excuses) : excuses(std::move(own_excuses)) {}

    std::vector<std::pair<Channel*, std::size_t>> channels;  // with the rank's slot in each
    std::condition_variable wake;                            // of its communication thread
    CollectiveHistory history;
    Excuses excuses;
    bool left = false;
    std::optional<CollectiveHistory::Entry> withdrawn;  // an exception took it out of scope
  };

  Meetings(int world_size, LaunchOptions launch_options);

  /// The state that members of a subgroup share; they have not met yet.
  std::shared_ptr<GroupState> join_group(const std::string& name, std::vector<int> members);
  Channel& channel_of(GroupState& group, const ChannelKey& key);
  Rank& rank_of(const Channel& channel, std::size_t slot);
  void wake_ranks(const Channel& channel);

  /// How long jitter holds a call back: at its seat (draw 0), or before its first step (1).
  CollectiveClock::duration jitter(const ThreadCall& call, int draw) const;

  // How a meeting goes on: the oldest call of `slot` takes its seat, unless jitter holds it back;
  // all ranks have ended a step, or the last one.
  void take_seat(Channel& channel, std::size_t slot);
  void advance(Channel& channel);
  void conclude(Channel& channel);
  /// Takes a call back that went out of scope by an exception; false once a step has begun.
  bool withdraw(ThreadCall& call);
  /// The body of `rank` has returned.
  void leave(int rank);
  /// Whether a rank that the channel waits for is excused.
  bool is_excused(const GroupState& group, const Channel& channel);

  /// Poisons the launch, once. The calls of the same meeting as `origin` fail by themselves, all
  /// others because of it.
  void fail(const std::string& cause, const ThreadCall* origin = nullptr);
  void fail_by_exception(int rank, const std::string& what);
  /// If a call of the rank was withdrawn.
  void fail_by_withdrawal(int rank);
  void fail_to_join(Channel& channel);
  void give_up_step(Channel& channel);
  void end_failed_calls(Channel& channel);

  const LaunchOptions options;
  std::shared_ptr<GroupState> world;
  std::vector<std::unique_ptr<Rank>> ranks;
  std::vector<std::shared_ptr<GroupState>> groups;  // ranks point to their channels
  std::string failure;                              // of the first failure; empty while all is well
  std::string report;                    // of the first failure; empty again when reported
  bool rank_threw = false;               // that was the first failure
  bool stopped = false;                  // the bodies of all ranks have ended
  CollectiveClock::duration running{0};  // RunningClock::elapsed()

 private:
  void open_meeting(Channel& channel);
  void check_for_the_departed(const Channel& channel);
  /// The longest that one of the seated calls has.
  std::chrono::milliseconds deadline_of(const Channel& channel) const;
  std::string state_of(const Rank& rank, const CollectiveHistory::Entry& entry) const;
  std::string history() const;
};

}  // namespace moegrad
