// SPDX-License-Identifier: Apache-2.0
// Queues, the modelled link, consumers, and the life of a Work.
#include <atomic>
#include <thread>

#include "framework/distributed/collectives.h"
#include "tests/framework/distributed/collective_testing.h"

namespace moegrad::collective_queue_test {
namespace {

using namespace std::chrono_literals;
using namespace test;

const auto kIgnore = [](PeerSpans) {};

TEST(Queues, AWaitingQueueDoesNotHoldUpAnother) {
  launch(2, [](RankContext& context) {
    auto& group = *context.group();
    std::vector<float> input(4);
    const auto gather = [&](CollectiveQueue queue) {
      return group.all_gather(std::as_bytes(std::span(input)), Dtype::kFloat32, kIgnore,
                              {.queue = queue});
    };
    if (context.rank() == 0) {
      const auto waiting = gather(CollectiveQueue::kReduce);
      gather(CollectiveQueue::kGather)->wait();
      EXPECT_FALSE(waiting->test());  // rank 1 joins only after the second fast one
      gather(CollectiveQueue::kGather)->wait();
      waiting->wait();
      EXPECT_TRUE(waiting->test());
    } else {
      gather(CollectiveQueue::kGather)->wait();
      gather(CollectiveQueue::kGather)->wait();
      gather(CollectiveQueue::kReduce)->wait();
    }
  });
}

TEST(Queues, CallsOfOneQueueRunInTheOrderOfIssue) {
  launch(3, [](RankContext& context) {
    auto& group = *context.group();
    std::vector<int> order;
    std::vector<WorkPtr> works;
    for (int i = 0; i < 20; ++i) {
      works.push_back(
          group.all_gather({}, Dtype::kFloat32, [&, i](PeerSpans) { order.push_back(i); }));
    }
    works.back()->wait();
    for (const auto& work : works) EXPECT_TRUE(work->test());
    for (int i = 0; i < 20; ++i) EXPECT_EQ(order.at(static_cast<std::size_t>(i)), i);
  });
}

TEST(Queues, SendsWaitOnlyForTheirOwnTag) {
  launch(2, [](RankContext& context) {
    auto& group = *context.group();
    std::vector<float> first = {1}, second = {2}, third = {3};
    const auto bytes = [](std::vector<float>& v) { return std::as_writable_bytes(std::span(v)); };
    if (context.rank() == 0) {
      const auto a = group.send(bytes(first), 1, 5, Dtype::kFloat32);
      const auto b = group.send(bytes(second), 1, 5, Dtype::kFloat32);
      const auto c = group.send(bytes(third), 1, 6, Dtype::kFloat32);
      for (const auto& work : {a, b, c}) work->wait();
    } else {
      std::vector<float> got(1);
      group.recv(bytes(got), 0, 6, Dtype::kFloat32)->wait();
      EXPECT_EQ(got[0], 3);
      group.recv(bytes(got), 0, 5, Dtype::kFloat32)->wait();
      EXPECT_EQ(got[0], 1);
      group.recv(bytes(got), 0, 5, Dtype::kFloat32)->wait();
      EXPECT_EQ(got[0], 2);
    }
  });
}

TEST(LinkModel, DelaysOneQueueAndNotTheOther) {
  struct Seen final : std::exception {};
  // The large gather needs hours, the small one nothing: it overtakes on every rank. The exception
  // ends the launch, and with it the transfer.
  const auto body = [](RankContext& context) {
    auto& group = *context.group();
    std::vector<float> large(10'000), small(0);
    const auto slow = group.all_gather(std::as_bytes(std::span(large)), Dtype::kFloat32, kIgnore,
                                       {.queue = CollectiveQueue::kGather});
    group
        .all_gather(std::as_bytes(std::span(small)), Dtype::kFloat32, kIgnore,
                    {.queue = CollectiveQueue::kReduce})
        ->wait();
    EXPECT_FALSE(slow->test());
    group.barrier({.queue = CollectiveQueue::kReduce})->wait();
    throw Seen();
  };
  EXPECT_THROW(launch(2, body, {.link = {.bytes_per_second = 1}}), Seen);
}

TEST(LinkModel, DeliversTheSameResultsLater) {
  launch(4,
         [](RankContext& context) {
           auto values = numbers<float>(context.rank(), 100);
           const auto start = std::chrono::steady_clock::now();
           all_reduce(*context.group(), std::span(values));
           context.group()->barrier()->wait();
           EXPECT_GE(std::chrono::steady_clock::now() - start, 20ms);
           EXPECT_EQ(values, test::reduced<float>(4, 100, ReduceOp::kSum));
         },
         {.link = {.latency = 10ms, .bytes_per_second = 1e6}});
}

// Either gather alone takes 10 ms.
TEST(LinkModel, IsSharedByTheQueues) {
  launch(2,
         [](RankContext& context) {
           auto& group = *context.group();
           std::vector<float> input(2'500);
           group.barrier()->wait();
           const auto start = std::chrono::steady_clock::now();
           std::vector<WorkPtr> works;
           for (const auto queue : {CollectiveQueue::kGather, CollectiveQueue::kReduce}) {
             works.push_back(group.all_gather(std::as_bytes(std::span(input)), Dtype::kFloat32,
                                              kIgnore, {.queue = queue}));
           }
           for (const auto& work : works) work->wait();
           EXPECT_GE(std::chrono::steady_clock::now() - start, 20ms);
         },
         {.link = {.bytes_per_second = 1e6}});
}

// The link between hosts needs hours, that within a host nothing.
TEST(LinkModel, HasHosts) {
  struct Seen final : std::exception {};
  const auto body = [](RankContext& context) {
    auto& world = *context.group();
    const int first = context.rank() / 2 * 2;
    const int own_host[] = {first, first + 1};
    const auto host = world.subgroup(own_host, "host");
    const auto across = world.barrier();
    EXPECT_EQ(all_reduce<std::int64_t>(*host, 1), 2);
    // Nor has it ended well if the other host has seen as much already.
    EXPECT_FALSE(across->timing().has_value());
    host->barrier()->wait();  // both ranks of the host have seen it
    throw Seen();
  };
  EXPECT_THROW(launch(4, body, {.link = {.ranks_per_host = 2, .between_hosts = {.latency = 1h}}}),
               Seen);
}

TEST(GatherConsumer, RunsOnTheCommunicationThreadOnTheInputsThemselves) {
  launch(2, [](RankContext& context) {
    std::vector<float> input(4);
    const auto* own = reinterpret_cast<const std::byte*>(input.data());
    std::thread::id thread;
    const auto consume = [&](PeerSpans peers) {
      thread = std::this_thread::get_id();
      EXPECT_EQ(peers[static_cast<std::size_t>(context.rank())].data(), own);
    };
    context.group()->all_gather(std::as_bytes(std::span(input)), Dtype::kFloat32, consume)->wait();
    EXPECT_NE(thread, std::this_thread::get_id());
  });
}

TEST(GatherConsumer, IsDestroyedOnTheRanksOwnThreadByWait) {
  struct Witness {
    std::thread::id* destroyed_on;
    explicit Witness(std::thread::id* id) : destroyed_on(id) {}
    ~Witness() { *destroyed_on = std::this_thread::get_id(); }
  };
  launch(3, [](RankContext& context) {
    std::thread::id destroyed_on;
    auto witness = std::make_shared<Witness>(&destroyed_on);
    const auto work =
        context.group()->all_gather({}, Dtype::kFloat32, [held = std::move(witness)](PeerSpans) {});
    work->wait();
    EXPECT_EQ(destroyed_on, std::this_thread::get_id());
  });
}

TEST(GatherConsumer, MayPostACallOfAGroupOfItsRankAlone) {
  for (const int world : {1, 2}) {
    launch(world, [](RankContext& context) {
      const int own[] = {context.rank()};
      const auto alone = context.group()->subgroup(own, "alone");
      WorkPtr posted;
      std::vector<std::int64_t> input = {7}, output(1);
      const auto bytes = std::as_bytes(std::span(input));
      const auto consume = [&](PeerSpans) {
        posted = alone->all_gather(bytes, std::as_writable_bytes(std::span(output)), Dtype::kInt64);
      };
      context.group()->all_gather(bytes, Dtype::kInt64, consume)->wait();
      posted->wait();
      EXPECT_EQ(output, input);
    });
  }
}

TEST(GatherConsumer, CannotWaitForACollective) {
  const auto body = [](RankContext& context) {
    auto& group = *context.group();
    group.all_gather({}, Dtype::kFloat32, [&](PeerSpans) { group.barrier()->wait(); })->wait();
  };
  for (const int world : {1, 2}) {
    EXPECT_EQ(
        test::error_message<CollectiveError>([&] { launch(world, body); }),
        "barrier [group world, sequence 1]: a consumer cannot wait for a collective, it holds "
        "up the thread that executes them");
  }
}

// The buffer is gone when the consumer has returned: a peer must not read it any more (the address
// sanitizer watches).
TEST(GatherConsumer, ThatDropsAWorkFailsTheLaunch) {
  const auto body = [](RankContext& context) {
    auto& group = *context.group();
    for (const auto queue : {CollectiveQueue::kReduce, CollectiveQueue::kDefault}) {
      const auto drop = [&](PeerSpans) {
        std::vector<float> values(200'000, 1.0F);
        group.all_reduce(std::as_writable_bytes(std::span(values)), Dtype::kFloat32, ReduceOp::kSum,
                         {.queue = queue});
      };
      group.all_gather({}, Dtype::kFloat32, drop)->wait();
    }
    group.barrier()->wait();
  };
  for (const int world : {1, 2, 4}) {
    EXPECT_THAT(test::error_message<CollectiveError>([&] { launch(world, body); }),
                ::testing::ContainsRegex("rank [0-3] dropped the Work of all_reduce .group world, "
                                         "queue reduce, sequence 0. in a consumer, which cannot "
                                         "wait for it"));
  }
}

TEST(GatherConsumer, ThatThrowsIsTheCauseAlthoughItDropsAWork) {
  const auto body = [](RankContext& context) {
    auto& group = *context.group();
    const auto consume = [&](PeerSpans) {
      if (context.rank() != 1) return;
      const auto work = group.barrier();
      throw std::domain_error("boom");
    };
    try {
      group.all_gather({}, Dtype::kFloat32, consume)->wait();
      group.barrier()->wait();
    } catch (const CollectiveError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("rank 1 failed: boom"));
      throw;
    }
  };
  EXPECT_ANY_THROW(launch(2, body));
}

TEST(Work, ThatIsDroppedBlocksUntilItsCallHasEnded) {
  launch(2, [](RankContext& context) {
    for (int round = 0; round < 100; ++round) {
      std::atomic<bool> consumed = false;
      std::vector<float> input(1000);  // freed right after the Work: a peer must have read it
      context.group()->all_gather(std::as_bytes(std::span(input)), Dtype::kFloat32,
                                  [&](PeerSpans peers) {
                                    std::vector<std::byte> copy(peers[0].begin(), peers[0].end());
                                    consumed = true;
                                  });
      EXPECT_TRUE(consumed);
    }
  });
}

TEST(Work, CanOutliveItsRankAndItsLaunch) {
  std::vector<WorkPtr> works(2);
  std::shared_ptr<ProcessGroup> group;
  launch(2, [&](RankContext& context) {
    if (context.rank() == 0) group = context.group();
    works[static_cast<std::size_t>(context.rank())] = context.group()->barrier();
  });
  for (const auto& work : works) work->wait();
  EXPECT_EQ(test::error_message<CollectiveError>([&] { group->barrier(); }),
            "group world: the launch has ended");
}

TEST(LinkModel, TakesTheBytesOfTheRankThatReceivesMost) {
  launch(2, [](RankContext& context) {
    const bool sends = context.rank() == 1;
    std::vector<std::int64_t> out(sends ? 100 : 0), in(sends ? 0 : 100);
    const std::vector<std::int64_t> none = {0, 0}, to_0 = {100, 0}, from_1 = {0, 100};
    const auto work = context.group()->all_to_all(
        {std::as_bytes(std::span(out))}, sends ? to_0 : none,
        {std::as_writable_bytes(std::span(in))}, sends ? none : from_1, Dtype::kInt64);
    work->wait();
    EXPECT_EQ(work->timing()->wire_bytes, 800);
  });
}

TEST(LinkModel, CarriesBetweenHostsWhatOtherHostsSend) {
  launch(4,
         [](RankContext& context) {
           std::vector<float> input(5'000);  // two ranks on the other host: 40'000 bytes
           context.group()->barrier()->wait();
           const auto start = std::chrono::steady_clock::now();
           context.group()
               ->all_gather(std::as_bytes(std::span(input)), Dtype::kFloat32, [](PeerSpans) {})
               ->wait();
           EXPECT_GE(std::chrono::steady_clock::now() - start, 400ms);
         },
         {.link = {.ranks_per_host = 2, .between_hosts = {.bytes_per_second = 1e5}}});
}

TEST(Work, OfALongSumWaitsForNoThreadToLookAgainByItself) {
  launch(3, [](RankContext& context) {
    std::vector<float> values(30'000, 1.0F);
    context.group()->barrier()->wait();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 20; ++i) all_reduce(*context.group(), std::span(values), ReduceOp::kMax);
    EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);  // else 20 s
  });
}

}  // namespace
}  // namespace moegrad::collective_queue_test
