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

#include "framework/distributed/threads/collective_call.h"

namespace moegrad {

/// Names a channel: a queue (from = -1), or a direction between two ranks and a tag.
struct ChannelKey {
  std::string queue = {};
  int from = -1;
  int to = -1;
  int tag = 0;
  auto operator<=>(const ChannelKey&) const = default;
};

/// An ordered line of calls in which the ranks of a group meet. There is a channel for each queue
/// name, whose slots are the group's ranks. There is also one for each (from, to, tag), whose slots
/// are sender and receiver, so that a send that waits for its recv blocks nothing else.
///
/// The oldest pending call of each slot takes its seat. When all seats are taken the meeting begins
/// and the ranks run its steps. Guarded by the hub's mutex, except that running steps read `seats`,
/// which does not change during a meeting. Consumers do not read it, because they may be given up.
struct Channel {
  Channel(std::string group_name, ChannelKey channel_key, std::vector<int> world_ranks);

  std::size_t size() const { return ranks.size(); }
  bool met() const { return arrived == ranks.size(); }

  /// What is wrong with the call that has just taken the seat `slot`; empty if nothing is.
  std::string disagreement(std::size_t slot) const;
  /// One of the calls that have taken their seats; null if none has.
  const CollectiveCall* any_seated() const;
  /// "rank 1" or "ranks 1, 2": the ranks whose seat is taken, or not taken.
  std::string list_ranks(bool seated) const;
  /// The ranks that have ended, or not ended, the current step, in the same form.
  std::string list_ranks_by_step(bool ended_it) const;
  /// "group world", "group world, queue gather", "group world, rank 0 to 1, tag 7"; the queue
  /// "default" is not mentioned.
  std::string where() const;
  /// How far one of its calls has come: "issued" while other calls are before it in the queue,
  /// "joined" while it waits for the other ranks, "running" or "executed" for the rank's own part,
  /// "done".
  std::string_view state(const CollectiveRequest& request) const;
  /// The most that a rank receives in this meeting, over the link.
  std::int64_t wire_bytes() const;

  std::string group;
  ChannelKey key;
  std::vector<int> ranks;  // slot -> rank in the world: the one that messages name
  std::vector<std::int64_t> issued;
  std::vector<std::vector<std::shared_ptr<CollectiveCall>>> pending;  // oldest first

  // The meeting.
  std::vector<CollectiveCall*> seats;
  std::size_t arrived = 0;
  int step = 0;
  CollectiveClock::time_point step_opened;  // when all could begin it
  std::size_t ended = 0;                    // slots that have ended this step
  std::size_t running = 0;                  // slots that are inside it
  CollectiveClock::duration expires{0};     // running time by which all must have arrived, or ended
  CollectiveClock::time_point ready_at;     // when the modelled link has delivered
};

/// "all_gather [group world, sequence 3, layers.1]": a request that has been posted.
std::string describe(const CollectiveRequest& request);

/// "rank 1", "ranks 1, 2", "ranks 0-2, 5": ascending ranks, three or more in a row as a range.
std::string name_ranks(std::span<const int> ranks);

/// What the ranks of one group share.
struct GroupState {
  std::string name;
  std::vector<int> ranks;
  std::map<ChannelKey, std::unique_ptr<Channel>> channels;
  std::size_t joined = 0;  // ranks that have called subgroup()
};

}  // namespace moegrad
