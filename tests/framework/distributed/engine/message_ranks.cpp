// SPDX-License-Identifier: Apache-2.0
#include "tests/framework/distributed/engine/message_ranks.h"

#include <algorithm>
#include <chrono>
#include <compare>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "framework/distributed/engine/engine_process_group.h"
#include "framework/distributed/engine/message_wire.h"

namespace moegrad::test {
namespace {

using namespace std::chrono_literals;
using TimePoint = CollectiveClock::time_point;

/// The messages of one kind from one rank to another, in one line of calls; they keep their order.
struct StreamKey {
  int from = 0, to = 0;
  int kind = 0;       // Messages::Kind, or that of what ranks say beside their collectives
  LineKey line = {};  // as the sender sees it
  auto operator<=>(const StreamKey&) const = default;
};
constexpr int kBeside = 2;

struct Message {
  std::vector<std::byte> copy = {};
  std::span<const std::byte> bytes = {};  // the copy's, or the sender's own
  TimePoint due = {};
  bool taken = false;
};

struct Receive {
  std::span<std::byte> into = {};
  std::size_t size = 0;
  bool ended = false;
};

/// What is between the ranks.
class Network {
 public:
  Network(int ranks, std::uint64_t seed) : wakes_(static_cast<std::size_t>(ranks)), random_(seed) {}

  std::shared_ptr<Message> send(const StreamKey& key, std::span<const std::byte> bytes) {
    const std::lock_guard lock(mutex_);
    auto message = std::make_shared<Message>();
    message->bytes = bytes;
    if (key.kind == kBeside || random_() % 2 == 0) {
      message->copy.assign(bytes.begin(), bytes.end());
      message->bytes = message->copy;
      message->taken = true;  // the sender has its bytes back
    }
    constexpr std::uint64_t kLongest = 300;
    message->due = CollectiveClock::now() +
                   std::chrono::microseconds(random_() % 4 == 0 ? random_() % kLongest : 0);
    sent_[key].push_back(message);
    return message;
  }
  std::shared_ptr<Receive> receive(const StreamKey& key, std::span<std::byte> into) {
    const std::lock_guard lock(mutex_);
    return receives_[key].emplace_back(std::make_shared<Receive>(Receive{.into = into}));
  }
  bool test(const StreamKey& key, const Receive& receive) {
    const std::lock_guard lock(mutex_);
    auto& receives = receives_[key];
    auto& messages = sent_[key];
    while (!receives.empty() && !messages.empty() &&
           messages.front()->due <= CollectiveClock::now()) {
      auto& first = *receives.front();
      auto& message = *messages.front();
      check(message.bytes.size() <= first.into.size(), "a message is longer than its receive");
      std::ranges::copy(message.bytes, first.into.begin());
      first.size = message.bytes.size();
      first.ended = message.taken = true;
      messages.pop_front();
      receives.pop_front();
    }
    return receive.ended;
  }
  void take_back(const StreamKey& key, Receive& receive) {
    const std::lock_guard lock(mutex_);
    std::erase_if(receives_[key], [&](const auto& each) { return each.get() == &receive; });
    receive.ended = true;
  }
  bool was_taken(const Message& message) {
    const std::lock_guard lock(mutex_);
    return message.taken;
  }
  /// A sender that is gone: what it has not copied cannot be read any more.
  void forget(const StreamKey& key, const Message& message) {
    const std::lock_guard lock(mutex_);
    if (!message.taken) {
      std::erase_if(sent_[key], [&](const auto& each) { return each.get() == &message; });
    }
  }
  /// The next message for which no receive is needed.
  std::shared_ptr<Message> next(const StreamKey& key) {
    const std::lock_guard lock(mutex_);
    auto& messages = sent_[key];
    if (messages.empty() || messages.front()->due > CollectiveClock::now()) return nullptr;
    auto message = messages.front();
    messages.pop_front();
    return message;
  }
  /// Drops what has been sent to a rank.
  void drop(int rank) {
    const std::lock_guard lock(mutex_);
    for (auto& [key, messages] : sent_) {
      if (key.to != rank || key.kind == kBeside) continue;
      for (const auto& message : messages) message->taken = true;
      messages.clear();
    }
  }

  void wake(int rank) {
    const std::lock_guard lock(mutex_);
    wakes_[static_cast<std::size_t>(rank)].woken = true;
    wakes_[static_cast<std::size_t>(rank)].condition.notify_all();
  }
  void sleep(int rank, TimePoint until) {
    auto& own = wakes_[static_cast<std::size_t>(rank)];
    std::unique_lock lock(mutex_);
    for (const auto& [key, messages] : sent_) {
      if (key.to == rank && !messages.empty()) until = std::min(until, messages.front()->due);
    }
    own.condition.wait_until(lock, until, [&] { return own.woken; });
    own.woken = false;
  }

 private:
  struct Wake {
    std::condition_variable condition;
    bool woken = false;
  };

  std::mutex mutex_;
  std::vector<Wake> wakes_;
  std::mt19937_64 random_;
  std::map<StreamKey, std::deque<std::shared_ptr<Message>>> sent_;
  std::map<StreamKey, std::deque<std::shared_ptr<Receive>>> receives_;
};

class SendRequest final : public Messages::Request {
 public:
  SendRequest(Network& network, const StreamKey& key, std::span<const std::byte> bytes)
      : network_(network), key_(key), message_(network.send(key, bytes)) {}
  ~SendRequest() override { network_.forget(key_, *message_); }
  bool test() override { return network_.was_taken(*message_); }
  std::size_t size() const override { return 0; }
  void cancel() override {}

 private:
  Network& network_;
  StreamKey key_;
  std::shared_ptr<Message> message_;
};

class ReceiveRequest final : public Messages::Request {
 public:
  ReceiveRequest(Network& network, const StreamKey& key, std::span<std::byte> into)
      : network_(network), key_(key), receive_(network.receive(key, into)) {}
  ~ReceiveRequest() override { network_.take_back(key_, *receive_); }
  bool test() override { return network_.test(key_, *receive_); }
  std::size_t size() const override { return receive_->size; }
  void cancel() override { network_.take_back(key_, *receive_); }

 private:
  Network& network_;
  StreamKey key_;
  std::shared_ptr<Receive> receive_;
};

class LineMessages final : public Messages {
 public:
  LineMessages(Network& network, const LineKey& line, Slots slots)
      : network_(network), line_(line), slots_(std::move(slots)) {}

  std::unique_ptr<Request> send(std::size_t slot, Kind kind,
                                std::span<const std::byte> bytes) override {
    const StreamKey key = {
        .from = rank(slots_.own), .to = rank(slot), .kind = static_cast<int>(kind), .line = line_};
    return std::make_unique<SendRequest>(network_, key, bytes);
  }
  std::unique_ptr<Request> receive(std::size_t slot, Kind kind,
                                   std::span<std::byte> bytes) override {
    const StreamKey key = {.from = rank(slot),
                           .to = rank(slots_.own),
                           .kind = static_cast<int>(kind),
                           .line = across(line_)};
    return std::make_unique<ReceiveRequest>(network_, key, bytes);
  }
  bool is_on_this_host(std::size_t) const override { return true; }
  void wake() override {
    for (const int each : slots_.world_ranks) network_.wake(each);
  }

 private:
  int rank(std::size_t slot) const { return slots_.world_ranks[slot]; }

  Network& network_;
  LineKey line_;
  Slots slots_;
};

class MessageTransport final : public Transport {
 public:
  MessageTransport(Network& network, int rank, int ranks)
      : network_(network), rank_(rank), ranks_(ranks) {}

  void set_arena(std::shared_ptr<Arena> arena) override { arena_ = std::move(arena); }

  std::unique_ptr<Wire> open(const EngineGroup&, const LineKey& key, const Slots& slots) override {
    return std::make_unique<MessageWire>(std::make_unique<LineMessages>(network_, key, slots),
                                         slots, arena_);
  }
  void send(int to, std::vector<std::byte> message) override {
    network_.send({.from = rank_, .to = to, .kind = kBeside}, message);
  }
  bool receive(
      const std::function<void(int from, std::span<const std::byte> message)>& hear) override {
    bool any = false;
    for (int from = 0; from < ranks_; ++from) {
      while (const auto message = network_.next({.from = from, .to = rank_, .kind = kBeside})) {
        hear(from, message->copy);
        any = true;
      }
    }
    return any;
  }
  void wake(std::span<const int> ranks) override {
    for (const int rank : ranks) network_.wake(rank);
  }
  bool is_woken_by(std::span<const int>) const override { return true; }
  void wake_own() override { network_.wake(rank_); }
  bool makes_groups_any_time() const override { return true; }
  void make_group(const EngineGroup&, const EngineGroup&, std::span<const int>) override {}
  std::optional<int> most_tags() const override { return std::nullopt; }
  bool drain() override {
    network_.drop(rank_);
    return true;
  }
  void abandon() override {}

 private:
  Network& network_;
  int rank_;
  int ranks_;
  std::shared_ptr<Arena> arena_;
};

/// One rank: its body's thread and its own.
class MessageRank {
 public:
  MessageRank(Network& network, int rank, int ranks, const LaunchOptions& options)
      : network_(network),
        state_(std::make_shared<LaunchState>("launch_on_messages", options, ranks)) {
    engine_ = std::make_shared<Engine>(state_, rank,
                                       std::make_unique<MessageTransport>(network, rank, ranks));
  }

  void run(const std::function<void(RankContext&)>& body) {
    std::thread own([this] { serve(); });
    thrown_ = run_rank(engine_, {}, body);
    own.join();
    engine_->close();
    state_->report_failure();
  }
  std::exception_ptr thrown() const { return thrown_; }

 private:
  void serve() {
    std::optional<TimePoint> failed_at;
    while (true) {
      EngineLock lock(state_->mutex);
      const auto now = CollectiveClock::now();
      state_->advance(now);
      const auto activity = engine_->poll(lock, /*works=*/true);
      state_->watch(lock, now);
      const bool failed = state_->has_failed();
      if (failed && !failed_at) failed_at = now;
      const bool waits_long = failed && now > *failed_at + 1'500ms;
      const bool has_ended = failed ? engine_->is_quiet() && !engine_->is_stuck()
                                    : engine_->has_said_all() && engine_->has_heard_all();
      if (has_ended && (!failed || waits_long || others_quiet_for(now))) return;
      if (activity.progress) continue;
      lock.unlock();
      network_.sleep(engine_->rank(), std::min(activity.wake_at, now + 5ms));
    }
  }
  // Others may still send what this rank has to take.
  bool others_quiet_for(TimePoint now) {
    if (!quiet_since_) quiet_since_ = now;
    return now > *quiet_since_ + 100ms;
  }

  Network& network_;
  std::shared_ptr<LaunchState> state_;
  std::shared_ptr<Engine> engine_;
  std::exception_ptr thrown_;
  std::optional<TimePoint> quiet_since_;
};

}  // namespace

void launch_on_messages(int world_size, const std::function<void(RankContext&)>& body,
                        const LaunchOptions& options, std::uint64_t seed) {
  Network network(world_size, seed);
  std::vector<std::unique_ptr<MessageRank>> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.push_back(std::make_unique<MessageRank>(network, rank, world_size, options));
  }
  {
    std::vector<std::jthread> threads;
    for (const auto& rank : ranks) threads.emplace_back([&] { rank->run(body); });
  }
  std::exception_ptr consequence;
  for (const auto& rank : ranks) {
    if (rank->thrown() == nullptr) continue;
    try {
      std::rethrow_exception(rank->thrown());
    } catch (const AbortedError&) {
      consequence = rank->thrown();
    }
  }
  if (consequence != nullptr) std::rethrow_exception(consequence);
}

}  // namespace moegrad::test
