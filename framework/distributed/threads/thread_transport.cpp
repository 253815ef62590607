// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/threads/thread_transport.h"

#include <algorithm>

namespace moegrad {
namespace {

class ThreadWire final : public Wire {
 public:
  ThreadWire(std::shared_ptr<ThreadChannel> channel, const Slots& slots,
             std::shared_ptr<ThreadRanks> ranks)
      : ranks_(std::move(ranks)),
        channel_(std::move(channel)),
        own_(slots.own),
        world_ranks_(slots.world_ranks) {}

  void announce(const std::shared_ptr<EngineCall>& call, const CallHeader& header) override {
    call_ = channel_->begun[own_]++;
    auto& place = this->place();
    if (std::exchange(place.call, call_) != call_) place.shown = 0;
    place.call_of_side[own_] = call_;
    auto& side = place.sides[own_];
    show(side, call, own_, size());
    side.header = header;
    if (++place.shown < size()) return;
    for (std::size_t slot = 0; slot < size(); ++slot) wake(slot);
  }

  Arrival arrival(std::size_t from) override {
    auto& place = this->place();
    const auto& side = place.sides[from];
    if (place.call_of_side[from] != call_ || side.withdrawn) return {};
    Arrival arrival = {.header = &side.header};
    if (side.call->op == CollectiveOp::kAllToAll) {
      arrival.sends = side.call->send_counts[own_];
      arrival.expects = side.call->recv_counts[own_];
    }
    return arrival;
  }

  bool withdraw() override {
    auto& side = place().sides[own_];
    side.withdrawn = side.begun == 0;
    return side.withdrawn;
  }

  bool sends() const override { return false; }

  std::unique_ptr<Exchange> begin(std::size_t piece_bytes) override {
    std::vector<MemorySide*> sides;
    for (auto& side : place().sides) {
      if (side.withdrawn) return nullptr;
      sides.push_back(&side);
    }
    return std::make_unique<MemoryExchange>(std::move(sides), own_, piece_bytes,
                                            [this](std::size_t slot) { wake(slot); });
  }

  bool has_sent(std::size_t) override { return true; }

  bool abort(bool give_up) override {
    if (call_ < 0) return true;
    auto& side = place().sides[own_];
    side.withdrawn = true;
    return side.reading == 0 || give_up;
  }

 private:
  std::size_t size() const { return world_ranks_.size(); }
  ThreadChannel::Place& place() { return channel_->place_of(call_); }
  void wake(std::size_t slot) {
    ranks_->ranks[static_cast<std::size_t>(world_ranks_[slot])].woken = true;
  }

  std::shared_ptr<ThreadRanks> ranks_;
  std::shared_ptr<ThreadChannel> channel_;
  std::size_t own_;
  std::vector<int> world_ranks_;
  std::int64_t call_ = -1;
};

}  // namespace

ThreadChannel::ThreadChannel(std::size_t slots) : begun(slots) {
  for (auto& place : places) {
    place.call_of_side.assign(slots, -1);
    place.sides.resize(slots);
  }
}

// Both sides of messages have the same channel.
std::shared_ptr<ThreadChannel> ThreadRanks::channel(LineKey key, std::size_t slots) {
  key.side = 0;
  auto& known = channels[key];
  auto found = known.lock();
  if (found != nullptr) return found;
  found = std::shared_ptr<ThreadChannel>(new ThreadChannel(slots), [this, key](auto* channel) {
    delete channel;
    channels.erase(key);
  });
  known = found;
  return found;
}

std::unique_ptr<Wire> ThreadTransport::open(const EngineGroup&, const LineKey& key,
                                            const Slots& slots) {
  return std::make_unique<ThreadWire>(ranks_->channel(key, slots.size()), slots, ranks_);
}

void ThreadTransport::send(int rank, std::vector<std::byte> message) {
  auto& to = ranks_->ranks[static_cast<std::size_t>(rank)];
  to.inbox.emplace_back(rank_, std::move(message));
}

bool ThreadTransport::receive(
    const std::function<void(int from, std::span<const std::byte> message)>& hear) {
  const auto messages = std::exchange(own().inbox, {});
  for (const auto& [from, message] : messages) hear(from, message);
  return !messages.empty();
}

void ThreadTransport::wake(std::span<const int> ranks) {
  for (const int rank : ranks) ranks_->ranks[static_cast<std::size_t>(rank)].woken = true;
}

void ThreadTransport::wake_own() {
  own().woken = true;
  sleep_until(CollectiveClock::time_point::min());
}

void ThreadTransport::sleep_until(CollectiveClock::time_point time) {
  if (time >= own().sleeps_until) return;
  own().sleeps_until = time;
  own().wakes.notify_all();
}

}  // namespace moegrad
