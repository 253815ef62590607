// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/thread_hub.h"

#include <algorithm>
#include <numeric>

#include "framework/distributed/aborted_error.h"

namespace moegrad {

ThreadHub::ThreadHub(int world_size, std::chrono::milliseconds deadline, const LinkModel& link)
    : deadline_(deadline), link_(link), world_(std::make_shared<GroupState>()) {
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
  // barrier: a group that is complete is never joined again, one of the same name is a new one.
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
  Lock lock(mutex_);
  Channel& channel = channel_of(group, key);
  call->channel = &channel;
  call->slot = slot;
  call->sequence = channel.issued[slot]++;
  const Rank& rank = rank_of(channel, slot);
  if (!rank.withdrawn.empty()) {
    fail("rank " + std::to_string(channel.ranks[slot]) + " gave up " + rank.withdrawn +
         " because of an exception");
  }
  if (!failure_.empty()) throw AbortedError(describe(*call, channel.group) + ": " + failure_);
  check<CollectiveError>(!stopped_, "group ", channel.group, ": the launch has ended");
  channel.pending[slot].push_back(call);
  if (channel.pending[slot].size() == 1) take_seat(channel, slot);
  if (channel.size() > 1) return;
  // A rank alone needs no second thread.
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
    channel = std::make_unique<Channel>(group.name, std::move(ranks));
    for (std::size_t slot = 0; slot < channel->size(); ++slot) {
      rank_of(*channel, slot).channels.emplace_back(channel.get(), slot);
    }
  }
  return *channel;
}

ThreadHub::Rank& ThreadHub::rank_of(const Channel& channel, std::size_t slot) {
  return *ranks_[static_cast<std::size_t>(channel.ranks[slot])];
}

void ThreadHub::take_seat(Channel& channel, std::size_t slot) {
  // A rank on its way out meets nobody any more.
  if (!rank_of(channel, slot).withdrawn.empty()) return;
  if (channel.arrived++ == 0) channel.expires = CollectiveClock::now() + deadline_;
  channel.seats[slot] = channel.pending[slot].front().get();
  const auto disagreement = channel.disagreement(slot);
  if (!disagreement.empty()) return fail(disagreement, &channel);
  if (!channel.met()) return check_for_the_departed(channel);
  channel.ready_at = CollectiveClock::now();
  for (auto* call : channel.seats) {
    call->met = channel.ready_at;
    call->wire_bytes = channel.size() > 1 ? channel.wire_bytes() : 0;
  }
  if (channel.size() > 1) channel.ready_at += link_.duration(channel.wire_bytes());
  advance(channel);
}

void ThreadHub::check_for_the_departed(const Channel& channel) {
  if (channel.arrived == 0 || channel.met()) return;
  for (std::size_t slot = 0; slot < channel.size(); ++slot) {
    if (!rank_of(channel, slot).left || !channel.pending[slot].empty()) continue;
    return fail("rank " + std::to_string(channel.ranks[slot]) +
                    " has left; waiting: " + channel.list_ranks(true),
                &channel);
  }
}

void ThreadHub::advance(Channel& channel) {
  const bool last = channel.step == num_steps(channel.seats.front()->op);
  if (last && CollectiveClock::now() >= channel.ready_at) return conclude(channel);
  wake_ranks(channel);
}

void ThreadHub::conclude(Channel& channel) {
  const auto now = CollectiveClock::now();
  for (std::size_t slot = 0; slot < channel.size(); ++slot) {
    channel.seats[slot]->done = true;
    channel.seats[slot]->ended = now;
    channel.seats[slot]->finished.notify_all();
    channel.seats[slot] = nullptr;
    channel.pending[slot].pop_front();
  }
  channel.arrived = 0;
  channel.step = 0;
  if (stopped_) wake_ranks(channel);  // threads that stay for their last call
  for (std::size_t slot = 0; slot < channel.size() && failure_.empty(); ++slot) {
    if (!channel.pending[slot].empty()) take_seat(channel, slot);
  }
}

void ThreadHub::fail(const std::string& cause, const Channel* origin) {
  if (!failure_.empty()) return;
  failure_ = cause;
  if (origin != nullptr) {
    const auto seated = std::ranges::find_if(origin->seats, [](auto* seat) { return seat; });
    failure_ = "aborted by " + describe(**seated, origin->group) + ": " + cause;
  }
  for (const auto& group : groups_) {
    for (const auto& [key, channel] : group->channels) {
      for (std::size_t slot = 0; slot < channel->size(); ++slot) {
        for (const auto& call : channel->pending[slot]) {
          call->aborted = channel.get() != origin || channel->seats[slot] != call.get();
          call->error = describe(*call, channel->group) + ": " + (call->aborted ? failure_ : cause);
        }
      }
      if (channel->running == 0) end_failed_calls(*channel);
    }
  }
}

void ThreadHub::end_failed_calls(Channel& channel) {
  for (auto& queue : channel.pending) {
    for (const auto& call : queue) {
      call->done = true;
      call->finished.notify_all();
    }
    queue.clear();
  }
  channel.arrived = 0;
  channel.seats.assign(channel.size(), nullptr);
  if (stopped_) wake_ranks(channel);
}

void ThreadHub::wake_ranks(const Channel& channel) {
  for (std::size_t slot = 0; slot < channel.size(); ++slot)
    rank_of(channel, slot).wake.notify_all();
}

void ThreadHub::rank_failed(int rank, const std::string& what) {
  const std::lock_guard lock(mutex_);
  fail("rank " + std::to_string(rank) + " failed: " + what);
}

void ThreadHub::rank_left(int rank) {
  const std::lock_guard lock(mutex_);
  Rank& leaver = *ranks_[static_cast<std::size_t>(rank)];
  leaver.left = true;
  if (!leaver.withdrawn.empty()) {
    fail("rank " + std::to_string(rank) + " gave up " + leaver.withdrawn +
         " because of an exception");
  }
  for (const auto& [channel, slot] : leaver.channels) check_for_the_departed(*channel);
}

}  // namespace moegrad
