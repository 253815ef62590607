// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/threads/rendezvous.h"

#include <algorithm>
#include <sstream>
#include <utility>

namespace moegrad {
namespace {

std::string pairwise_count_disagreement(const Channel& channel) {
  for (std::size_t from = 0; from < channel.size(); ++from) {
    for (std::size_t to = 0; to < channel.size(); ++to) {
      const auto sent = channel.seats[from]->send_counts[to];
      const auto expected = channel.seats[to]->recv_counts[from];
      if (sent == expected) continue;
      std::ostringstream text;
      text << "rank " << channel.ranks[from] << " sends " << sent << ' '
           << channel.seats[from]->dtype << " to rank " << channel.ranks[to] << ", which expects "
           << expected;
      return text.str();
    }
  }
  return {};
}

}  // namespace

Channel::Channel(std::vector<int> world_ranks)
    : ranks(std::move(world_ranks)), pending(ranks.size()), seats(ranks.size()) {}

std::string Channel::disagreement(std::size_t slot) const {
  // The calls already seated agree with each other, so comparing with the first is enough.
  const auto taken = [&](const auto& seat) { return seat != nullptr && &seat != &seats[slot]; };
  const auto other = static_cast<std::size_t>(std::ranges::find_if(seats, taken) - seats.begin());
  if (other < size() && !agree(*seats[other], *seats[slot])) {
    const auto [low, high] = std::minmax(other, slot);
    return moegrad::disagreement(ranks[low], *seats[low], ranks[high], *seats[high]);
  }
  if (met() && seats[slot]->op == CollectiveOp::kAllToAll) {
    return pairwise_count_disagreement(*this);
  }
  return {};
}

const ThreadCall* Channel::any_seated() const {
  const auto seat = std::ranges::find_if(seats, [](const auto* call) { return call != nullptr; });
  return seat == seats.end() ? nullptr : *seat;
}

std::string Channel::list_ranks(bool seated) const {
  std::vector<int> list;
  for (std::size_t slot = 0; slot < size(); ++slot) {
    if ((seats[slot] != nullptr) == seated) list.push_back(ranks[slot]);
  }
  return name_ranks(list);
}

std::string Channel::list_ranks_by_step(bool ended_it) const {
  std::vector<int> list;
  for (std::size_t slot = 0; slot < size(); ++slot) {
    const auto& call = *seats[slot];
    const bool has_ended = call.steps_begun > step && !call.inside_step;
    if (has_ended == ended_it) list.push_back(ranks[slot]);
  }
  return name_ranks(list);
}

std::string_view Channel::state(const ThreadCall& call) const {
  const auto& queue = pending[call.slot];
  const bool waits =
      std::ranges::any_of(queue, [&](const auto& each) { return each.get() == &call; });
  if (!waits) return "done";
  if (seats[call.slot] != &call) return "issued";
  if (call.inside_step) return "running";
  return call.steps_begun > step ? "executed" : "joined";
}

std::int64_t Channel::wire_bytes() const {
  std::int64_t most_received = 0;
  for (std::size_t slot = 0; slot < size(); ++slot) {
    most_received = std::max(most_received, received_from_others(*seats[slot], slot));
  }
  return moegrad::wire_bytes(*seats.front(), static_cast<std::int64_t>(size()), most_received);
}

}  // namespace moegrad
