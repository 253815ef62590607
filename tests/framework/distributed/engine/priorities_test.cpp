// SPDX-License-Identifier: Apache-2.0
// What goes first between two pieces. The engines of two ranks are carried on by hand, so nothing
// here depends on time.
#include <algorithm>
#include <memory>
#include <vector>

#include "framework/distributed/engine/engine_process_group.h"
#include "framework/distributed/engine/transfer.h"
#include "framework/distributed/launch.h"
#include "framework/distributed/threads/thread_transport.h"
#include "tests/testing.h"

namespace moegrad::priorities_test {
namespace {

constexpr std::size_t kFloats = 2'048, kPiece = 64;
// A rank sums half of the elements in pieces, then copies the other half.
constexpr int kPiecesOfCall = static_cast<int>(kFloats * sizeof(float) / kPiece);

class TwoRanks {
 public:
  explicit TwoRanks(std::map<CollectiveQueue, int> priorities) {
    LaunchOptions options;
    options.priorities = std::move(priorities);
    options.piece_bytes = kPiece;
    state_ = std::make_shared<LaunchState>("test", options, 2);
    for (int rank = 0; rank < 2; ++rank) {
      engines_.push_back(
          std::make_shared<Engine>(state_, rank, std::make_unique<ThreadTransport>(ranks_, rank)));
      groups_.push_back(
          std::make_shared<EngineProcessGroup>(engines_.back(), engines_.back()->world()));
    }
  }

  /// Both ranks sum ones; WorkPtr and buffer of rank 0.
  struct Sum {
    std::vector<std::vector<float>> values = {std::vector<float>(kFloats, 1.0F),
                                              std::vector<float>(kFloats, 1.0F)};
    std::vector<WorkPtr> works;
    /// How many elements of rank 0 are the sum.
    int summed() const { return static_cast<int>(std::ranges::count(values[0], 2.0F)); }
    bool is_done() const { return works[0]->test() && works[1]->test(); }
  };
  std::unique_ptr<Sum> sum(CollectiveQueue queue) {
    auto sum = std::make_unique<Sum>();
    for (std::size_t rank = 0; rank < 2; ++rank) {
      sum->works.push_back(
          groups_[rank]->all_reduce(std::as_writable_bytes(std::span(sum->values[rank])),
                                    Dtype::kFloat32, ReduceOp::kSum, {.queue = queue}));
    }
    return sum;
  }
  /// Looks until it is done; a Work must not be dropped before, as nobody else would end it.
  void finish(const Sum& sum) {
    for (int i = 0; i < 10 * kPiecesOfCall && !sum.is_done(); ++i) look();
    EXPECT_TRUE(sum.is_done());
  }
  ProcessGroup& group(std::size_t rank) { return *groups_[rank]; }
  std::size_t channels() const { return ranks_->channels.size(); }
  /// Each rank's own thread looks once.
  void look() {
    for (const auto& engine : engines_) {
      EngineLock lock(state_->mutex);
      engine->poll(lock, /*works=*/true);
      state_->carry_on(lock);
    }
  }

 private:
  std::shared_ptr<ThreadRanks> ranks_ = std::make_shared<ThreadRanks>(2);
  std::shared_ptr<LaunchState> state_;
  std::vector<std::shared_ptr<Engine>> engines_;
  std::vector<std::shared_ptr<EngineProcessGroup>> groups_;
};

constexpr auto kLow = CollectiveQueue::kReduce, kHigh = CollectiveQueue::kGather;

TEST(Priorities, LetALaterCallOvertakeBetweenTwoPieces) {
  TwoRanks ranks({{kHigh, 1}});
  const auto low = ranks.sum(kLow);
  for (int i = 0; i < 5; ++i) ranks.look();
  const auto summed = low->summed();
  EXPECT_GT(summed, 0);
  const auto high = ranks.sum(kHigh);
  for (int i = 0; i < kPiecesOfCall + 2; ++i) ranks.look();
  EXPECT_TRUE(high->is_done());
  EXPECT_FALSE(low->is_done());
  EXPECT_LE(low->summed(), summed + 3 * static_cast<int>(kPiece / sizeof(float)));
  ranks.finish(*low);
  ranks.finish(*high);
  EXPECT_EQ(low->summed(), static_cast<int>(kFloats));
}

TEST(Priorities, ThatAreEqualTakeTurns) {
  TwoRanks ranks({});
  const auto first = ranks.sum(kLow), second = ranks.sum(kHigh);
  for (int i = 0; i < kPiecesOfCall / 4; ++i) ranks.look();
  EXPECT_GT(first->summed(), 0);
  EXPECT_EQ(first->summed(), second->summed());
  ranks.finish(*first);
  ranks.finish(*second);
}

TEST(Priorities, NeverReorderTheCallsOfOneQueue) {
  TwoRanks ranks({{kHigh, 7}});
  const auto first = ranks.sum(kHigh), second = ranks.sum(kHigh);
  for (int i = 0; i < 10 * kPiecesOfCall && !first->is_done(); ++i) {
    EXPECT_EQ(second->summed(), 0);
    ranks.look();
  }
  ranks.finish(*first);
  ranks.finish(*second);
}

TEST(Priorities, OutOfTheirRangeAreRefused) {
  for (const int priority : {-1, 8}) {
    EXPECT_EQ(
        test::message_of<ValueError>([&] {
          launch(1, [](RankContext&) {}, {.priorities = {{kHigh, priority}}});
        }),
        "launch: the priority of queue gather must be in [0, 7], got " + std::to_string(priority));
  }
}

/// Messages that have gone as soon as they are sent, and never come.
class CountedMessages final : public Messages {
 public:
  class Ended final : public Request {
   public:
    explicit Ended(bool ended) : ended_(ended) {}
    bool test() override { return ended_; }
    std::size_t size() const override { return 0; }
    void cancel() override { ended_ = true; }

   private:
    bool ended_;
  };
  std::unique_ptr<Request> send(std::size_t, Kind, std::span<const std::byte> bytes) override {
    sent.push_back(bytes.size());
    return std::make_unique<Ended>(true);
  }
  std::unique_ptr<Request> receive(std::size_t, Kind, std::span<std::byte>) override {
    ++receives;
    return std::make_unique<Ended>(false);
  }
  bool is_on_this_host(std::size_t) const override { return true; }
  void wake() override {}

  std::vector<std::size_t> sent;
  int receives = 0;
};

TEST(Transfer, SendsNoPieceWhileAnotherGoesFirst) {
  CountedMessages messages;
  std::vector<std::byte> out(10 * kPiece + 1), in(3 * kPiece);
  std::size_t counted = 0;
  Transfer transfer(messages, kPiece, [&](std::size_t, std::size_t bytes) { counted += bytes; });
  transfer.send(1, {out}, 0, {std::ssize(out)});
  transfer.receive(1, in.data(), {std::ssize(in)});
  transfer.poll(/*may_send=*/false);
  EXPECT_TRUE(messages.sent.empty());
  EXPECT_EQ(messages.receives, 3);  // what the other sends may come
  transfer.poll(/*may_send=*/true);
  const auto window = messages.sent.size();
  EXPECT_GT(window, 0U);
  EXPECT_LT(window, 11U);
  transfer.poll(/*may_send=*/false);
  EXPECT_EQ(messages.sent.size(), window);
  for (int i = 0; i < 11; ++i) transfer.poll(/*may_send=*/true);
  EXPECT_EQ(messages.sent.size(), 11U);
  EXPECT_EQ(messages.sent.back(), 1U);
  EXPECT_EQ(counted, out.size());
  EXPECT_FALSE(transfer.done());  // what the other sends has not come
}

/// Payloads of a rank alone with a transport: they always have more to send, and note who may.
class Endless final : public Exchange {
 public:
  explicit Endless(bool& may_send) : may_send_(may_send) {}
  bool poll(EngineLock&, bool, bool may_send) override {
    may_send_ = may_send;
    return false;
  }
  bool done() const override { return cancelled_; }
  bool done_with(std::size_t) const override { return false; }
  bool has_more_to_send() const override { return true; }
  void cancel() override { cancelled_ = true; }

 private:
  bool& may_send_;
  bool cancelled_ = false;
};
class EndlessWire final : public Wire {
 public:
  explicit EndlessWire(bool& may_send) : may_send_(may_send) {}
  void announce(const std::shared_ptr<EngineCall>&, const CallHeader& header) override {
    header_ = header;
  }
  Arrival arrival(std::size_t) override { return {.header = &header_}; }
  bool withdraw() override { return false; }
  bool sends() const override { return true; }
  std::unique_ptr<Exchange> begin(std::size_t) override {
    return std::make_unique<Endless>(may_send_);
  }
  bool has_sent(std::size_t) override { return true; }
  bool abort(bool) override { return true; }

 private:
  bool& may_send_;
  CallHeader header_;
};
class EndlessTransport final : public Transport {
 public:
  explicit EndlessTransport(std::map<CollectiveQueue, bool>& may_send) : may_send_(may_send) {}
  std::unique_ptr<Wire> open(const EngineGroup&, const LineKey& key, const Slots&) override {
    return std::make_unique<EndlessWire>(may_send_[key.queue]);
  }
  void send(int, std::vector<std::byte>) override {}
  bool receive(const std::function<void(int, std::span<const std::byte>)>&) override {
    return false;
  }
  void wake(std::span<const int>) override {}
  bool is_woken_by(std::span<const int>) const override { return true; }
  void wake_own() override {}
  bool makes_groups_any_time() const override { return true; }
  void make_group(const EngineGroup&, const EngineGroup&, std::span<const int>) override {}
  std::optional<int> most_tags() const override { return {}; }
  bool drain() override { return true; }
  void abandon() override {}

 private:
  std::map<CollectiveQueue, bool>& may_send_;
};

std::map<CollectiveQueue, bool> who_may_send(std::map<CollectiveQueue, int> priorities) {
  std::map<CollectiveQueue, bool> may_send;
  LaunchOptions options;
  options.priorities = std::move(priorities);
  const auto state = std::make_shared<LaunchState>("test", options, 2);
  const auto engine =
      std::make_shared<Engine>(state, 0, std::make_unique<EndlessTransport>(may_send));
  EngineProcessGroup group(engine, engine->world());
  std::vector<WorkPtr> works;
  for (const auto queue : {kLow, kHigh}) works.push_back(group.barrier({.queue = queue}));
  for (int i = 0; i < 5; ++i) {
    EngineLock lock(state->mutex);
    engine->poll(lock, /*works=*/true);
  }
  engine->close();
  return may_send;
}

TEST(Priorities, LetPayloadsSendThatNoneOfAHigherOneHoldsUp) {
  using MaySend = std::map<CollectiveQueue, bool>;
  EXPECT_EQ(who_may_send({}), (MaySend{{kLow, true}, {kHigh, true}}));
  EXPECT_EQ(who_may_send({{kHigh, 1}}), (MaySend{{kLow, false}, {kHigh, true}}));
}

/// Messages that never go.
class StuckMessages final : public Messages {
 public:
  class Never final : public Request {
   public:
    bool test() override { return false; }
    std::size_t size() const override { return 0; }
    void cancel() override {}
  };
  std::unique_ptr<Request> send(std::size_t, Kind, std::span<const std::byte>) override {
    return std::make_unique<Never>();
  }
  std::unique_ptr<Request> receive(std::size_t, Kind, std::span<std::byte>) override {
    return std::make_unique<Never>();
  }
  bool is_on_this_host(std::size_t) const override { return true; }
  void wake() override {}
};

TEST(Transfer, HoldsUpNoOtherOnceItHasPostedAllItsPieces) {
  StuckMessages messages;
  const std::vector<std::byte> out(kPiece);
  Transfer transfer(messages, kPiece, [](std::size_t, std::size_t) {});
  transfer.send(1, {out}, 0, {std::ssize(out)});
  EXPECT_TRUE(transfer.has_more_to_send());
  transfer.poll(/*may_send=*/true);
  EXPECT_FALSE(transfer.has_more_to_send());
  EXPECT_FALSE(transfer.done());
}

TEST(Lines, OfTagsAreForgottenOnceTheyAreIdle) {
  TwoRanks ranks({});
  for (int tag = 0; tag < 100; ++tag) {
    const auto sent = ranks.group(0).send({}, 1, tag, Dtype::kFloat32);
    const auto received = ranks.group(1).recv({}, 0, tag, Dtype::kFloat32);
    for (int i = 0; i < 10 && !(sent->test() && received->test()); ++i) ranks.look();
    ASSERT_TRUE(sent->test() && received->test());
  }
  ranks.look();
  EXPECT_LE(ranks.channels(), 1U);
}

}  // namespace
}  // namespace moegrad::priorities_test
