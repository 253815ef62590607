// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/rendezvous.h"

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

std::int64_t received_from_others(const CollectiveCall& call, std::size_t slot) {
  std::int64_t count = 0;
  for (std::size_t from = 0; from < call.recv_counts.size(); ++from) {
    if (from != slot) count += call.recv_counts[from];
  }
  return count * size_of(call.dtype);
}

}  // namespace

Channel::Channel(std::string group_name, std::vector<int> world_ranks)
    : group(std::move(group_name)),
      ranks(std::move(world_ranks)),
      issued(ranks.size()),
      pending(ranks.size()),
      seats(ranks.size()) {}

std::string Channel::disagreement(std::size_t slot) const {
  // Those already seated agree with each other, so comparing with one is enough.
  for (std::size_t other = 0; other < size(); ++other) {
    if (other == slot || seats[other] == nullptr || agree(*seats[other], *seats[slot])) continue;
    const auto [low, high] = std::minmax(other, slot);
    const bool labels = seats[low]->label != seats[high]->label;
    const auto called = [&](std::size_t side) {
      return signature(*seats[side]) + (labels ? " (" + seats[side]->label + ")" : "");
    };
    std::ostringstream text;
    text << "rank " << ranks[low] << " called " << called(low) << ", rank " << ranks[high] << ' '
         << called(high);
    return text.str();
  }
  if (met() && seats[slot]->op == CollectiveOp::kAllToAll) {
    return pairwise_count_disagreement(*this);
  }
  return {};
}

std::string Channel::list_ranks(bool seated) const {
  std::ostringstream list;
  int count = 0;
  for (std::size_t slot = 0; slot < size(); ++slot) {
    if ((seats[slot] != nullptr) == seated) list << (count++ > 0 ? ", " : "") << ranks[slot];
  }
  return (count == 1 ? "rank " : "ranks ") + list.str();
}

std::int64_t Channel::wire_bytes() const {
  const CollectiveCall& call = *seats.front();
  const auto others = static_cast<std::int64_t>(size()) - 1;
  switch (call.op) {
    case CollectiveOp::kAllGather:
      return others * static_cast<std::int64_t>(call.input.size());
    case CollectiveOp::kReduceScatter:
      return others * static_cast<std::int64_t>(call.output.size());
    case CollectiveOp::kAllReduce:  // a reduce-scatter and an all-gather of the parts
      return 2 * others * static_cast<std::int64_t>(call.output.size()) / (others + 1);
    case CollectiveOp::kAllToAll: {
      std::int64_t most = 0;
      for (std::size_t slot = 0; slot < size(); ++slot) {
        most = std::max(most, received_from_others(*seats[slot], slot));
      }
      return most;
    }
    case CollectiveOp::kBroadcast:
    case CollectiveOp::kSend:
    case CollectiveOp::kRecv:
      return call.count * size_of(call.dtype);
    case CollectiveOp::kBarrier:
      return 0;
  }
  return 0;
}

}  // namespace moegrad
