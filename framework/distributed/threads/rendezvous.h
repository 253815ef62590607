// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "framework/distributed/threads/thread_call.h"

namespace moegrad {

/// Names a channel of a group: a queue, or two ranks of the world, a tag and a queue.
struct ChannelKey {
  CollectiveQueue queue = CollectiveQueue::kDefault;
  int from = -1;
  int to = -1;
  int tag = 0;
  auto operator<=>(const ChannelKey&) const = default;
};

/// An ordered line of calls in which the ranks of a group meet. There is a channel for each queue,
/// whose slots are the group's ranks. There is also one for each (from, to, tag, queue), whose
/// slots are sender and receiver, so that a send that waits for its recv blocks nothing else.
///
/// The oldest pending call of each slot takes its seat. When all seats are taken the meeting begins
/// and the ranks run its steps. Guarded by the hub's mutex, except that running steps read `seats`,
/// which does not change during a meeting. Consumers do not read it, because they may be given up.
struct Channel {
  explicit Channel(std::vector<int> world_ranks);

  std::size_t size() const { return ranks.size(); }
  bool met() const { return arrived == ranks.size(); }

  /// What is wrong with the call that has just taken the seat `slot`; empty if nothing is.
  std::string disagreement(std::size_t slot) const;
  /// One of the calls that have taken their seats; null if none has.
  const ThreadCall* any_seated() const;
  /// "rank 1" or "ranks 1, 2": the ranks whose seat is taken, or not taken.
  std::string list_ranks(bool seated) const;
  /// The ranks that have ended, or not ended, the current step, in the same form.
  std::string list_ranks_by_step(bool ended_it) const;
  /// How far one of its calls has come: "issued" while other calls are before it in the queue,
  /// "joined" while it waits for the other ranks, "running" or "executed" for the rank's own part,
  /// "done".
  std::string_view state(const ThreadCall& call) const;
  /// The most that a rank receives in this meeting, over the link.
  std::int64_t wire_bytes() const;

  std::vector<int> ranks;  // slot -> rank in the world: the one that messages name
  std::vector<std::vector<std::shared_ptr<ThreadCall>>> pending;  // oldest first

  // The meeting.
  std::vector<ThreadCall*> seats;
  std::size_t arrived = 0;
  int step = 0;
  CollectiveClock::time_point step_opened;  // when all could begin it
  std::size_t ended = 0;                    // slots that have ended this step
  std::size_t running = 0;                  // slots that are inside it
  CollectiveClock::duration expires{0};     // running time by which all must have arrived, or ended
  CollectiveClock::time_point ready_at;     // when the modelled link has delivered
};

/// What the ranks of one group share.
struct GroupState {
  std::string name;
  std::vector<int> ranks;
  std::map<ChannelKey, std::unique_ptr<Channel>> channels;
  std::size_t joined = 0;  // ranks that have called subgroup()
};

}  // namespace moegrad
