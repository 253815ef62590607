// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/threads/thread_hub.h"

#include <algorithm>
#include <numeric>
#include <sstream>
#include <utility>

#include "framework/distributed/aborted_error.h"
#include "framework/distributed/find_nan.h"

namespace moegrad {

ThreadHub::ThreadHub(int world_size, LaunchOptions options)
    : options_(std::move(options)), world_(std::make_shared<GroupState>()) {
  world_->name = "world";
  world_->ranks.resize(static_cast<std::size_t>(world_size));
  std::iota(world_->ranks.begin(), world_->ranks.end(), 0);
  groups_.push_back(world_);
  for (int rank = 0; rank < world_size; ++rank) ranks_.push_back(std::make_unique<Rank>());
}

ThreadHub::~ThreadHub() { stop(); }

std::shared_ptr<GroupState> ThreadHub::join_group(const std::string& name, std::vector<int> ranks) {
  const std::lock_guard lock(mutex_);
  // A member makes no second group before all have joined the first, since subgroup() ends with a
  // barrier. So a complete group is never joined again; another group of the same name is new.
  const auto incomplete = std::ranges::find_if(groups_, [&](const auto& group) {
    return group->name == name && group->ranks == ranks && 0 < group->joined &&
           group->joined < ranks.size();
  });
  if (incomplete != groups_.end()) {
    ++(*incomplete)->joined;
    return *incomplete;
  }
  auto group = std::make_shared<GroupState>();
  group->name = name;
  group->ranks = std::move(ranks);
  group->joined = 1;
  return groups_.emplace_back(std::move(group));
}

void ThreadHub::post(GroupState& group, const ChannelKey& key, std::size_t slot,
                     const std::shared_ptr<CollectiveCall>& call) {
  std::optional<std::int64_t> nan;
  if (options_.check_nan && is_reduction(call->op)) nan = find_nan(call->parts, call->dtype);
  Lock lock(mutex_);
  Channel& channel = channel_of(group, key);
  call->channel = &channel;
  call->slot = slot;
  call->sequence = channel.issued[slot]++;
  fail_by_withdrawal(channel.ranks[slot]);
  if (!failure_.empty()) {
    lock.unlock();
    report_failure();
    throw AbortedError(describe(*call) + ": " + failure_);
  }
  check<CollectiveError>(!stopped_, "group ", channel.group, ": the launch has ended");
  Rank& rank = rank_of(channel, slot);
  rank.history.add(*call);
  channel.pending[slot].push_back(call);
  if (nan.has_value()) {
    std::ostringstream cause;
    cause << "rank " << channel.ranks[slot] << " has NaN at element " << *nan << " of "
          << call->count << ' ' << call->dtype;
    fail(cause.str(), call.get());
    lock.unlock();
    report_failure();
    throw CollectiveError(call->error);
  }
  call->joins_at = CollectiveClock::now() + jitter(*call, 0);
  if (channel.pending[slot].size() == 1) take_seat(channel, slot);
  if (channel.size() > 1) return;
  // A single rank needs no second thread.
  std::vector<std::byte> scratch;
  auto wake_at = CollectiveClock::time_point::max();
  while (poll(lock, channel, slot, scratch, wake_at)) {
  }
}

Channel& ThreadHub::channel_of(GroupState& group, const ChannelKey& key) {
  auto& channel = group.channels[key];
  if (channel == nullptr) {
    auto ranks = group.ranks;
    if (key.from >= 0) {
      ranks = {group.ranks[static_cast<std::size_t>(key.from)],
               group.ranks[static_cast<std::size_t>(key.to)]};
    }
    channel = std::make_unique<Channel>(group.name, key, std::move(ranks));
    for (std::size_t slot = 0; slot < channel->size(); ++slot) {
      rank_of(*channel, slot).channels.emplace_back(channel.get(), slot);
    }
  }
  return *channel;
}

ThreadHub::Rank& ThreadHub::rank_of(const Channel& channel, std::size_t slot) {
  return *ranks_[static_cast<std::size_t>(channel.ranks[slot])];
}

CollectiveClock::duration ThreadHub::jitter(const CollectiveRequest& request, int draw) const {
  const Channel& channel = *request.channel;
  if (options_.jitter.maximum.count() == 0 || channel.size() == 1) return {};
  return options_.jitter.delay(channel.ranks[request.slot], channel.where(),
                               2 * request.sequence + draw);
}

void ThreadHub::take_seat(Channel& channel, std::size_t slot) {
  Rank& rank = rank_of(channel, slot);
  // A rank that is ending meets no other rank any more.
  if (rank.withdrawn.has_value()) return;
  if (CollectiveClock::now() < channel.pending[slot].front()->joins_at) {
    return rank.wake.notify_all();  // its communication thread does it later
  }
  if (channel.arrived++ == 0) {
    channel.expires = running_ + options_.jitter.maximum + options_.deadline;
  }
  channel.seats[slot] = channel.pending[slot].front().get();
  const auto disagreement = channel.disagreement(slot);
  if (!disagreement.empty()) return fail(disagreement, channel.seats[slot]);
  if (!channel.met()) return check_for_the_departed(channel);
  open_meeting(channel);
}

void ThreadHub::open_meeting(Channel& channel) {
  channel.ready_at = CollectiveClock::now();
  const auto met = channel.ready_at;
  const auto wire_bytes = channel.size() > 1 ? channel.wire_bytes() : 0;
  if (channel.size() > 1) channel.ready_at += options_.link.duration(wire_bytes);
  for (std::size_t slot = 0; slot < channel.size(); ++slot) {
    auto* const call = channel.seats[slot];
    call->met = met;
    call->wire_bytes = wire_bytes;
    auto delivered = channel.ready_at;
    if (channel.size() > 1) {
      delivered = met + options_.link.duration(wire_bytes, channel.ranks[slot]);
    }
    call->begins_at = delivered + jitter(*call, 1);
  }
  advance(channel);
}

void ThreadHub::check_for_the_departed(const Channel& channel) {
  if (channel.arrived == 0 || channel.met()) return;
  for (std::size_t slot = 0; slot < channel.size(); ++slot) {
    if (!rank_of(channel, slot).left || !channel.pending[slot].empty()) continue;
    return fail("rank " + std::to_string(channel.ranks[slot]) +
                    " has left; waiting: " + channel.list_ranks(true),
                channel.any_seated());
  }
}

void ThreadHub::advance(Channel& channel) {
  const auto now = CollectiveClock::now();
  const bool last = channel.step == num_steps(channel.seats.front()->op);
  if (last && now >= channel.ready_at) return conclude(channel);
  channel.step_opened = now;
  auto begins = std::max(now, channel.ready_at);
  for (const auto* call : channel.seats) begins = std::max(begins, call->begins_at);
  channel.expires = running_ + (begins - now) + options_.jitter.maximum + options_.deadline;
  wake_ranks(channel);
}

void ThreadHub::conclude(Channel& channel) {
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
  if (stopped_) wake_ranks(channel);  // wakes threads that wait for their last call
  for (std::size_t slot = 0; slot < channel.size() && failure_.empty(); ++slot) {
    if (!channel.pending[slot].empty()) take_seat(channel, slot);
  }
}

void ThreadHub::wake_ranks(const Channel& channel) {
  for (std::size_t slot = 0; slot < channel.size(); ++slot)
    rank_of(channel, slot).wake.notify_all();
}

void ThreadHub::rank_left(int rank) {
  const std::lock_guard lock(mutex_);
  Rank& leaver = *ranks_[static_cast<std::size_t>(rank)];
  leaver.left = true;
  fail_by_withdrawal(rank);
  for (const auto& [channel, slot] : leaver.channels) check_for_the_departed(*channel);
}

}  // namespace moegrad
