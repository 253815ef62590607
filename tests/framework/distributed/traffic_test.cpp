// SPDX-License-Identifier: Apache-2.0
// What the groups of a rank count: bytes of each collective, by formulas, and the time of waiting.
#include "framework/distributed/traffic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "framework/distributed/launch.h"
#include "tests/framework/distributed/counting_process_group.h"
#include "tests/framework/distributed/mock_process_group.h"

namespace moegrad::traffic_test {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::NiceMock;
using ::testing::Pair;

using Bytes = std::vector<std::byte>;
using Counts = std::vector<std::int64_t>;

constexpr auto kType = Dtype::kInt64;

/// `elements` numbers as bytes.
Bytes numbers(std::int64_t elements) { return Bytes(static_cast<std::size_t>(8 * elements)); }

/// Expects that `body`, which is given the group of all ranks, sends and receives as many bytes as
/// `expected` says of (rank, ranks), on one, two and three ranks.
void expect_bytes(const std::function<WorkPtr(ProcessGroup&)>& body,
                  const std::function<TrafficFigures(std::int64_t, std::int64_t)>& expected) {
  for (const int ranks : {1, 2, 3}) {
    launch(ranks, [&](RankContext& context) {
      auto& group = *context.group();
      SCOPED_TRACE(::testing::Message() << group.rank() << '/' << ranks);
      if (const auto work = body(group)) work->wait();
      if (ranks == 1) {
        EXPECT_TRUE(group.traffic().empty());
        return;
      }
      auto counted = group.traffic().at("world");
      counted.wait = 0;
      EXPECT_EQ(counted, expected(group.rank(), ranks))
          << counted.bytes_sent << ' ' << counted.bytes_received;
    });
  }
}

TrafficFigures both(std::int64_t bytes) { return {.bytes_sent = bytes, .bytes_received = bytes}; }

TEST(Traffic, OfAllGatherIsTheInputToAndFromEachOther) {
  const auto expected = [](std::int64_t, std::int64_t ranks) { return both((ranks - 1) * 40); };
  const auto input = numbers(5);
  expect_bytes(
      [&](ProcessGroup& group) { return group.all_gather(input, kType, [](PeerSpans) {}); },
      expected);
  expect_bytes(
      [&](ProcessGroup& group) {
        auto output = numbers(5 * group.size());
        group.all_gather(input, output, kType)->wait();
        return nullptr;
      },
      expected);
}

TEST(Traffic, OfReduceScatterIsTheOutputToAndFromEachOther) {
  expect_bytes(
      [](ProcessGroup& group) {
        const auto input = numbers(500 * group.size());
        auto output = numbers(500);
        group.reduce_scatter({input}, output, kType, ReduceOp::kSum)->wait();
        return nullptr;
      },
      [](std::int64_t, std::int64_t ranks) { return both((ranks - 1) * 4000); });
}

// Each rank sums a part, and hands it out.
TEST(Traffic, OfAllReduceIsThatOfReduceScatterAndAllGather) {
  expect_bytes(
      [](ProcessGroup& group) {
        auto values = numbers(600);
        group.all_reduce(values, kType, ReduceOp::kSum)->wait();
        return nullptr;
      },
      [](std::int64_t, std::int64_t ranks) { return both(2 * (ranks - 1) * 4800 / ranks); });
}

// The last rank's part is longer: 601 elements are 200, 200 and 201, or 300 and 301.
TEST(Traffic, OfAllReduceInUnequalParts) {
  expect_bytes(
      [](ProcessGroup& group) {
        auto values = numbers(601);
        group.all_reduce(values, kType, ReduceOp::kSum)->wait();
        return nullptr;
      },
      [](std::int64_t rank, std::int64_t ranks) {
        const auto part = (601 * (rank + 1) / ranks - 601 * rank / ranks) * 8;
        return both((ranks - 1) * part + 601 * 8 - part);
      });
}

TEST(Traffic, OfAShortAllReduceIsAllToAndFromEachOther) {
  expect_bytes(
      [](ProcessGroup& group) {
        auto values = numbers(256);
        group.all_reduce(values, kType, ReduceOp::kSum)->wait();
        return nullptr;
      },
      [](std::int64_t, std::int64_t ranks) { return both((ranks - 1) * 2048); });
}

TEST(Traffic, OfBroadcastIsSentByTheRootAlone) {
  expect_bytes(
      [](ProcessGroup& group) {
        auto values = numbers(7);
        group.broadcast(values, group.size() - 1, kType)->wait();
        return nullptr;
      },
      [](std::int64_t rank, std::int64_t ranks) {
        return rank == ranks - 1 ? TrafficFigures{.bytes_sent = (ranks - 1) * 56}
                                 : TrafficFigures{.bytes_received = 56};
      });
}

// From rank r to rank t go r + 2 t + 1 elements.
TEST(Traffic, OfAllToAllIsWhatTheCountsSay) {
  const auto sum = [](std::int64_t rank, std::int64_t ranks, bool sends) {
    std::int64_t elements = 0;
    for (std::int64_t peer = 0; peer < ranks; ++peer) {
      if (peer != rank) elements += sends ? rank + 2 * peer + 1 : peer + 2 * rank + 1;
    }
    return 8 * elements;
  };
  for (const bool consumes : {false, true}) {
    expect_bytes(
        [&](ProcessGroup& group) {
          Counts sent, received;
          for (std::int64_t peer = 0; peer < group.size(); ++peer) {
            sent.push_back(group.rank() + 2 * peer + 1);
            received.push_back(peer + 2 * group.rank() + 1);
          }
          const auto input = numbers(std::reduce(sent.begin(), sent.end()));
          auto output = numbers(std::reduce(received.begin(), received.end()));
          const auto work = consumes ? group.all_to_all(
                                           {input}, sent, [](PeerSpans) {}, received, kType)
                                     : group.all_to_all(input, sent, output, received, kType);
          work->wait();
          return nullptr;
        },
        [&](std::int64_t rank, std::int64_t ranks) {
          return TrafficFigures{.bytes_sent = sum(rank, ranks, true),
                                .bytes_received = sum(rank, ranks, false)};
        });
  }
}

// From the first rank to the last.
TEST(Traffic, OfAMessageIsThatOfItsTwoRanks) {
  expect_bytes(
      [](ProcessGroup& group) {
        auto message = numbers(9);
        const int last = group.size() - 1;
        if (last > 0 && group.rank() == 0) group.send(message, last, 0, kType)->wait();
        if (last > 0 && group.rank() == last) group.recv(message, 0, 0, kType)->wait();
        return nullptr;
      },
      [](std::int64_t rank, std::int64_t ranks) {
        return TrafficFigures{.bytes_sent = rank == 0 ? 72 : 0,
                              .bytes_received = rank == ranks - 1 ? 72 : 0};
      });
}

TEST(Traffic, OfABarrierIsNothing) {
  expect_bytes([](ProcessGroup& group) { return group.barrier(); },
               [](std::int64_t, std::int64_t) { return TrafficFigures{}; });
}

std::map<std::string, std::int64_t> sent_by(const ProcessGroup& group) {
  std::map<std::string, std::int64_t> sent;
  for (const auto& [name, figures] : group.traffic()) sent[name] = figures.bytes_sent;
  return sent;
}

// All groups that came from one know what each has moved.
TEST(Traffic, IsCountedByTheNameOfTheGroup) {
  launch(3, [](RankContext& context) {
    const auto& world = context.group();
    const int own[] = {world->rank()};
    const auto alone = world->subgroup(own, "alone");
    alone->all_gather(numbers(5), kType, [](PeerSpans) {})->wait();
    if (world->rank() == 0) {
      EXPECT_THAT(sent_by(*world), ElementsAre(Pair("world", 0)));
      return;
    }
    const int last[] = {1, 2};
    const auto pair = world->subgroup(last, "pair");
    pair->all_gather(numbers(5), kType, [](PeerSpans) {})->wait();
    EXPECT_THAT(sent_by(*world), ElementsAre(Pair("pair", 40), Pair("world", 0)));
    EXPECT_EQ(sent_by(*pair), sent_by(*world));
  });
}

TEST(Traffic, IsCountedOnceWhereAGroupWrapsAnother) {
  launch(2, [](RankContext& context) {
    const auto& world = context.group();
    test::CountingProcessGroup outer(world, std::make_shared<test::CallCounts>());
    const int all[] = {0, 1};
    const auto within = outer.subgroup(all, "within");
    for (auto* const group : {static_cast<ProcessGroup*>(&outer), within.get()}) {
      const auto input = numbers(5);
      group->all_gather(input, kType, [](PeerSpans) {})->wait();
    }
    EXPECT_THAT(sent_by(outer), ElementsAre(Pair("within", 40), Pair("world", 40)));
    EXPECT_THAT(sent_by(*world), ElementsAre(Pair("within", 0), Pair("world", 0)));
    EXPECT_GT(outer.traffic()["within"].wait, 0);
    EXPECT_EQ(world->traffic()["world"].wait, 0);
  });
}

constexpr auto kTime = 20ms;

/// A call that takes kTime.
class SlowWork final : public Work {
 protected:
  const CollectiveRequest& request() const override { return request_; }
  void block() override { std::this_thread::sleep_for(kTime); }
  bool has_ended() override { return true; }
  std::exception_ptr failure() override { return nullptr; }
  CollectiveTiming times() override { return {}; }

 private:
  CollectiveRequest request_;
};

std::int64_t nanoseconds(std::chrono::nanoseconds time) { return time.count(); }

TEST(Traffic, HasTheWaitingOfAllThreads) {
  NiceMock<test::MockProcessGroup> group(std::vector<int>{0, 1}, 0);
  const auto waited = [&] { return group.traffic().at("mock").wait; };
  ON_CALL(group, issue).WillByDefault([](const CollectiveCall&) {
    return std::make_shared<SlowWork>();
  });
  const auto first = group.barrier(), second = group.barrier(), third = group.barrier();
  EXPECT_EQ(waited(), 0);
  std::thread other([&] { first->wait(); });
  second->wait();
  other.join();
  EXPECT_GE(waited(), nanoseconds(2 * kTime));
  third->await_end();
  EXPECT_GE(waited(), nanoseconds(3 * kTime));
}

}  // namespace
}  // namespace moegrad::traffic_test
