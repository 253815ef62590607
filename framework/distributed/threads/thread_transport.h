// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "framework/distributed/engine/memory_exchange.h"
#include "framework/distributed/engine/transport.h"

namespace moegrad {

/// Where the sides of one line meet. A side begins its next call only when its last has ended,
/// which no call does before all sides have begun it. So no more than two calls are there at a
/// time, and a side shows every other call in the same place.
struct ThreadChannel {
  explicit ThreadChannel(std::size_t slots);

  struct Place {
    std::int64_t call = -1;  // its number in this line
    std::size_t shown = 0;   // sides that show it
    std::vector<std::int64_t> call_of_side;
    std::vector<MemorySide> sides;  // by slot
  };
  Place& place_of(std::int64_t call) { return places[static_cast<std::size_t>(call) % 2]; }

  std::array<Place, 2> places;
  std::vector<std::int64_t> begun;  // calls so far, by slot
};

/// What the ranks of one launch share as threads. Guarded by the launch's mutex.
struct ThreadRanks {
  struct Rank {
    std::condition_variable wakes;
    bool woken = false;  // by another rank, or for it
    CollectiveClock::time_point sleeps_until = CollectiveClock::time_point::min();
    std::vector<std::pair<int, std::vector<std::byte>>> inbox;
  };

  explicit ThreadRanks(std::size_t size) : ranks(size) {}
  std::shared_ptr<ThreadChannel> channel(LineKey key, std::size_t slots);

  std::vector<Rank> ranks;
  std::map<LineKey, std::weak_ptr<ThreadChannel>> channels;
};

/// Ranks that are threads of one process: they read each other's memory.
class ThreadTransport final : public Transport {
 public:
  ThreadTransport(std::shared_ptr<ThreadRanks> ranks, int rank)
      : ranks_(std::move(ranks)), rank_(rank) {}

  std::unique_ptr<Wire> open(const EngineGroup& group, const LineKey& key,
                             const Slots& slots) override;
  void send(int rank, std::vector<std::byte> message) override;
  bool receive(
      const std::function<void(int from, std::span<const std::byte> message)>& hear) override;
  void wake(std::span<const int> ranks) override;
  bool is_woken_by(std::span<const int>) const override { return true; }
  void wake_own() override;
  bool any_thread() const override { return true; }
  bool take_wake() override { return std::exchange(own().woken, false); }
  void sleep_until(CollectiveClock::time_point time) override;
  bool makes_groups_any_time() const override { return true; }
  void make_group(const EngineGroup&, const EngineGroup&, std::span<const int>) override {}
  std::optional<int> most_tags() const override { return std::nullopt; }
  bool drain() override { return true; }
  void abandon() override {}

 private:
  ThreadRanks::Rank& own() { return ranks_->ranks[static_cast<std::size_t>(rank_)]; }

  std::shared_ptr<ThreadRanks> ranks_;
  int rank_;
};

}  // namespace moegrad
