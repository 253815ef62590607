// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/threads/meetings.h"

#include <algorithm>
#include <numeric>
#include <sstream>
#include <utility>

namespace moegrad {

Meetings::Meetings(int world_size, LaunchOptions launch_options)
    : options(std::move(launch_options)), world(std::make_shared<GroupState>()) {
  world->name = "world";
  world->ranks.resize(static_cast<std::size_t>(world_size));
  std::iota(world->ranks.begin(), world->ranks.end(), 0);
  groups.push_back(world);
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.push_back(std::make_unique<Rank>(Excuses(rank, options.deadline)));
  }
}

std::shared_ptr<GroupState> Meetings::join_group(const std::string& name,
                                                 std::vector<int> members) {
  // A member makes no second group before all have joined the first, since subgroup() ends with a
  // barrier: a group that is complete is never joined again, one of the same name is a new one.
  const auto incomplete = std::ranges::find_if(groups, [&](const auto& group) {
    return group->name == name && group->ranks == members && 0 < group->joined &&
           group->joined < members.size();
  });
  if (incomplete != groups.end()) {
    ++(*incomplete)->joined;
    return *incomplete;
  }
  auto group = std::make_shared<GroupState>();
  group->name = name;
  group->ranks = std::move(members);
  group->joined = 1;
  return groups.emplace_back(std::move(group));
}

Channel& Meetings::channel_of(GroupState& group, const ChannelKey& key) {
  auto& channel = group.channels[key];
  if (channel == nullptr) {
    auto members = group.ranks;
    if (key.from >= 0) members = {key.from, key.to};
    channel = std::make_unique<Channel>(std::move(members));
    for (std::size_t slot = 0; slot < channel->size(); ++slot) {
      rank_of(*channel, slot).channels.emplace_back(channel.get(), slot);
    }
  }
  return *channel;
}

Meetings::Rank& Meetings::rank_of(const Channel& channel, std::size_t slot) {
  return *ranks[static_cast<std::size_t>(channel.ranks[slot])];
}

void Meetings::wake_ranks(const Channel& channel) {
  for (std::size_t slot = 0; slot < channel.size(); ++slot)
    rank_of(channel, slot).wake.notify_all();
}

CollectiveClock::duration Meetings::jitter(const ThreadCall& call, int draw) const {
  const Channel& channel = *call.channel;
  if (options.jitter.maximum.count() == 0 || channel.size() == 1) return {};
  return options.jitter.delay(channel.ranks[call.slot], where(call), 2 * call.sequence + draw);
}

std::chrono::milliseconds Meetings::deadline_of(const Channel& channel) const {
  std::chrono::milliseconds longest{0};
  for (const auto* call : channel.seats) {
    if (call != nullptr) longest = std::max(longest, call->deadline.value_or(options.deadline));
  }
  return longest;
}

void Meetings::take_seat(Channel& channel, std::size_t slot) {
  Rank& rank = rank_of(channel, slot);
  // A rank on its way out meets nobody any more.
  if (rank.withdrawn.has_value()) return;
  if (CollectiveClock::now() < channel.pending[slot].front()->joins_at) {
    return rank.wake.notify_all();  // its communication thread does it later
  }
  if (channel.arrived++ == 0) channel.expires = running + options.jitter.maximum;
  const auto longest_so_far = deadline_of(channel);
  channel.seats[slot] = channel.pending[slot].front().get();
  channel.expires += deadline_of(channel) - longest_so_far;
  const auto disagreement = channel.disagreement(slot);
  if (!disagreement.empty()) return fail(disagreement, channel.seats[slot]);
  if (!channel.met()) return check_for_the_departed(channel);
  open_meeting(channel);
}

void Meetings::open_meeting(Channel& channel) {
  channel.ready_at = CollectiveClock::now();
  const auto met = channel.ready_at;
  const auto wire_bytes = channel.size() > 1 ? channel.wire_bytes() : 0;
  if (channel.size() > 1) channel.ready_at += options.link.duration(wire_bytes);
  for (std::size_t slot = 0; slot < channel.size(); ++slot) {
    auto* const call = channel.seats[slot];
    call->met = met;
    call->wire_bytes = wire_bytes;
    auto delivered = channel.ready_at;
    if (channel.size() > 1) {
      delivered = met + options.link.duration(wire_bytes, channel.ranks[slot]);
    }
    call->begins_at = delivered + jitter(*call, 1);
  }
  advance(channel);
}

void Meetings::check_for_the_departed(const Channel& channel) {
  if (channel.arrived == 0 || channel.met()) return;
  for (std::size_t slot = 0; slot < channel.size(); ++slot) {
    if (!rank_of(channel, slot).left || !channel.pending[slot].empty()) continue;
    return fail("rank " + std::to_string(channel.ranks[slot]) +
                    " has left; waiting: " + channel.list_ranks(true),
                channel.any_seated());
  }
}

void Meetings::advance(Channel& channel) {
  const auto now = CollectiveClock::now();
  const bool last = channel.step == num_steps(channel.seats.front()->op);
  if (last && now >= channel.ready_at) return conclude(channel);
  channel.step_opened = now;
  auto begins = std::max(now, channel.ready_at);
  for (const auto* call : channel.seats) begins = std::max(begins, call->begins_at);
  channel.expires = running + (begins - now) + options.jitter.maximum + deadline_of(channel);
  wake_ranks(channel);
}

void Meetings::conclude(Channel& channel) {
  const auto now = CollectiveClock::now();
  for (std::size_t slot = 0; slot < channel.size(); ++slot) {
    channel.seats[slot]->done = true;
    channel.seats[slot]->ended = now;
    channel.seats[slot]->finished.notify_all();
    channel.seats[slot] = nullptr;
    channel.pending[slot].erase(channel.pending[slot].begin());
  }
  channel.arrived = 0;
  channel.step = 0;
  if (stopped) wake_ranks(channel);  // threads that stay for their last call
  for (std::size_t slot = 0; slot < channel.size() && failure.empty(); ++slot) {
    if (!channel.pending[slot].empty()) take_seat(channel, slot);
  }
}

bool Meetings::withdraw(ThreadCall& call) {
  Channel& channel = *call.channel;
  auto& seat = channel.seats[call.slot];
  if (seat == &call) {
    // Once a step has begun the others are reading its buffers, or are about to.
    if (channel.running > 0 || channel.ended > 0 || channel.step > 0) return false;
    seat = nullptr;
    --channel.arrived;
  }
  std::erase_if(channel.pending[call.slot],
                [&](const auto& other) { return other.get() == &call; });
  rank_of(channel, call.slot).withdrawn = {call, call.number};
  call.done = true;
  return true;
}

void Meetings::leave(int rank) {
  Rank& leaver = *ranks[static_cast<std::size_t>(rank)];
  leaver.left = true;
  fail_by_withdrawal(rank);
  for (const auto& [channel, slot] : leaver.channels) check_for_the_departed(*channel);
}

bool Meetings::is_excused(const GroupState& group, const Channel& channel) {
  if (channel.met()) return false;  // steps are executed by a thread that is at no disk
  for (std::size_t slot = 0; slot < channel.size(); ++slot) {
    if (channel.seats[slot] == nullptr &&
        rank_of(channel, slot).excuses.count_in(&group, world.get())) {
      return true;
    }
  }
  return false;
}

void Meetings::fail(const std::string& cause, const ThreadCall* origin) {
  if (!failure.empty()) return;
  report = origin == nullptr ? cause : describe(*origin) + ": " + cause;
  failure = origin == nullptr ? cause : "aborted by " + report;
  report += "\nlast operations of each rank:\n" + history();
  for (const auto& group : groups) {
    for (const auto& [key, channel] : group->channels) {
      for (const auto& queue : channel->pending) {
        for (const auto& call : queue) {
          call->aborted = origin == nullptr || call->channel != origin->channel ||
                          call->sequence != origin->sequence;
          call->error = describe(*call) + ": " + (call->aborted ? failure : cause);
        }
      }
      if (channel->running == 0) end_failed_calls(*channel);
    }
  }
}

void Meetings::fail_by_exception(int rank, const std::string& what) {
  if (failure.empty()) rank_threw = true;
  fail("rank " + std::to_string(rank) + " failed: " + what);
}

void Meetings::fail_by_withdrawal(int rank) {
  const auto& withdrawn = ranks[static_cast<std::size_t>(rank)]->withdrawn;
  if (!withdrawn.has_value()) return;
  fail("rank " + std::to_string(rank) + " gave up " + describe(withdrawn->request) +
       " because of an exception");
}

void Meetings::fail_to_join(Channel& channel) {
  std::ostringstream cause;
  cause << "not joined within " << deadline_of(channel).count() << " ms by "
        << channel.list_ranks(false) << "; waiting: " << channel.list_ranks(true);
  fail(cause.str(), channel.any_seated());
}

void Meetings::give_up_step(Channel& channel) {
  const bool gathers = channel.seats.front()->op == CollectiveOp::kAllGather;
  std::ostringstream cause;
  cause << "not executed within " << deadline_of(channel).count() << " ms by "
        << channel.list_ranks_by_step(false) << "; waiting: " << channel.list_ranks_by_step(true);
  fail(cause.str(), channel.any_seated());
  // The consumer of a gather may never return; all else ends soon, and reads the buffers until
  // then.
  if (gathers) end_failed_calls(channel);
}

void Meetings::end_failed_calls(Channel& channel) {
  for (std::size_t slot = 0; slot < channel.size(); ++slot) {
    auto& queue = channel.pending[slot];
    auto*& seat = channel.seats[slot];
    // A consumer that is given up keeps its own call.
    if (seat != nullptr && !seat->inside_step) seat = nullptr;
    while (!queue.empty() && queue.back().get() != seat) {
      queue.back()->done = true;
      queue.back()->finished.notify_all();
      queue.pop_back();
    }
  }
  channel.arrived = 0;
  if (stopped) wake_ranks(channel);
}

std::string Meetings::state_of(const Rank& rank, const CollectiveHistory::Entry& entry) const {
  if (rank.withdrawn.has_value() && rank.withdrawn->number == entry.number) return "given up";
  for (const auto& [channel, slot] : rank.channels) {
    for (const auto& call : channel->pending[slot]) {
      if (call->number == entry.number) return std::string(channel->state(*call));
    }
  }
  return "done";
}

std::string Meetings::history() const {
  std::vector<std::vector<HistoryLine>> histories;
  for (const auto& rank : ranks) {
    auto& lines = histories.emplace_back();
    for (const auto& entry : rank->history.entries()) {
      lines.push_back(history_line(entry.request, state_of(*rank, entry)));
    }
  }
  return format_history(histories);
}

}  // namespace moegrad
