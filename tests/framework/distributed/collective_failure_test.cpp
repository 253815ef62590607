// SPDX-License-Identifier: Apache-2.0
// Whatever goes wrong on one rank becomes an error on all, that says what and where.
#include <algorithm>
#include <atomic>
#include <thread>

#include "framework/distributed/collectives.h"
#include "tests/framework/distributed/collective_testing.h"

namespace moegrad::collective_failure_test {
namespace {

using namespace std::chrono_literals;
using namespace test;
using ::testing::ElementsAre;

const auto kIgnore = [](PeerSpans) {};
const CollectiveOptions kLayer{.label = "layers.1"};

WorkPtr gather(ProcessGroup& group, std::span<const float> input,
               const CollectiveOptions& options) {
  return group.all_gather(std::as_bytes(input), Dtype::kFloat32, kIgnore, options);
}

TEST(Failure, OfARanksBodyReachesThoseThatWait) {
  std::vector<std::string> errors(3);
  const auto body = [&](RankContext& context) {
    if (context.rank() == 1) throw ValueError("boom");
    try {
      std::vector<float> input(4);
      gather(*context.group(), input, kLayer)->wait();
    } catch (const CollectiveError& error) {
      errors[static_cast<std::size_t>(context.rank())] = error.what();
      throw;
    }
  };
  EXPECT_EQ(error_message<ValueError>([&] { launch(3, body); }), "boom");
  const std::string expected =
      "all_gather [group world, sequence 0, layers.1]: rank 1 failed: boom";
  EXPECT_THAT(errors, ElementsAre(expected, "", expected));
}

TEST(Failure, PoisonsEveryGroupAndQueueOfTheLaunch) {
  const auto errors = errors_of(3, [](RankContext& context) {
    auto& group = *context.group();
    const int pair[] = {0, 1};
    const auto other = context.rank() < 2 ? group.subgroup(pair, "pair") : nullptr;
    const auto elsewhere =
        context.rank() == 1 ? other->barrier({.queue = CollectiveQueue::kReduce}) : nullptr;
    // A barrier against an all_gather fails; rank 1 had a call of another group pending.
    EXPECT_THROW(context.rank() == 0 ? group.barrier()->wait() : gather(group, {}, {})->wait(),
                 CollectiveError);
    if (context.rank() == 0) other->barrier({.label = "later"});  // throws at once
    if (context.rank() == 1) elsewhere->wait();
    if (context.rank() == 2) group.barrier({.queue = CollectiveQueue::kGather});
  });
  EXPECT_THAT(errors[0],
              ::testing::MatchesRegex("barrier .group pair, sequence 1, later.: aborted by .* "
                                      ".group world, sequence 0.: rank 0 called barrier, rank . "
                                      "all_gather of 0 float32"));
  EXPECT_THAT(errors[1],
              ::testing::StartsWith("barrier [group pair, queue reduce, sequence 0]: aborted by "));
  EXPECT_THAT(errors[2], ::testing::StartsWith(
                             "barrier [group world, queue gather, sequence 0]: aborted by "));
}

TEST(Failure, OfAConsumerIsThatRanksOwnException) {
  std::vector<std::string> errors(2);
  const auto body = [&](RankContext& context) {
    const auto work = context.group()->all_gather(
        {}, Dtype::kFloat32,
        [&](PeerSpans) {
          if (context.rank() == 1) throw ShapeError("copy-out: no room");
        },
        kLayer);
    try {
      work->wait();
    } catch (const Error& error) {
      errors[static_cast<std::size_t>(context.rank())] = error.what();
      throw;
    }
  };
  EXPECT_EQ(error_message<ShapeError>([&] { launch(2, body); }), "copy-out: no room");
  EXPECT_THAT(errors, ElementsAre("all_gather [group world, sequence 0, layers.1]: rank 1 failed: "
                                  "copy-out: no room",
                                  "copy-out: no room"));
  EXPECT_THROW(launch(1,
                      [](RankContext& context) {
                        context.group()
                            ->all_gather({}, Dtype::kFloat32,
                                         [](PeerSpans) { throw ShapeError("alone"); })
                            ->wait();
                      }),
               ShapeError);
}

TEST(Failure, OfARankThatHasLeftIsReportedAtOnce) {
  const auto errors = errors_of(3, [](RankContext& context) {
    context.group()->barrier()->wait();
    if (context.rank() == 1) return;
    std::vector<float> values(4);
    all_reduce(*context.group(), std::span(values), ReduceOp::kSum, kLayer);
  });
  for (const int rank : {0, 2}) {
    EXPECT_THAT(errors[static_cast<std::size_t>(rank)],
                ::testing::MatchesRegex("all_reduce .group world, sequence 1, layers.1.: (aborted "
                                        "by all_reduce .group world, sequence 1, layers.1.: )?rank "
                                        "1 has left; waiting: ranks? [02, ]*"));
  }
}

TEST(Failure, OfARankThatStallsComesWithTheDeadline) {
  test::RankLatch reported(1);
  const auto errors = errors_of(
      2,
      [&](RankContext& context) {
        if (context.rank() == 1) reported.wait();
        try {
          context.group()->barrier(kLayer)->wait();
        } catch (const CollectiveError&) {
          if (context.rank() == 0) reported.count_down();
          throw;
        }
      },
      200ms);
  const std::string where = "barrier [group world, sequence 0, layers.1]: ";
  const std::string cause = "not joined within 200 ms by rank 1; waiting: rank 0";
  EXPECT_THAT(errors, ElementsAre(where + cause, where + "aborted by " + where + cause));
}

TEST(Failure, OfASubgroupThatNotAllMembersMakeNamesThoseMissing) {
  test::RankLatch reported(1);
  const auto errors = errors_of(
      3,
      [&](RankContext& context) {
        if (context.rank() == 1) return reported.wait();
        const int ranks[] = {0, 1, 2};
        try {
          context.group()->subgroup(std::span(ranks).first(context.rank() == 0 ? 2 : 3), "pair");
        } catch (const CollectiveError&) {
          if (context.rank() == 0) reported.count_down();
          throw;
        }
      },
      200ms);
  EXPECT_THAT(errors[0], ::testing::StartsWith(
                             "barrier [group pair, sequence 0, subgroup of ranks {0, 1}]: "));
}

TEST(Failure, WhileBuffersGoOutOfScopeIsSafeAndNamesTheRank) {
  // Rank 1 throws with gathers in flight, some of which the others have joined: neither may a peer
  // read freed memory (the address sanitizer watches), nor may anyone hang.
  for (int round = 0; round < 50; ++round) {
    const auto body = [&](RankContext& context) {
      std::vector<float> input(20'000, 1.0F);
      std::vector<float> output(60'000);
      const auto copy_out = [&](PeerSpans peers) {
        auto* out = std::as_writable_bytes(std::span(output)).data();
        for (const auto& peer : peers) out = std::copy(peer.begin(), peer.end(), out);
      };
      std::vector<WorkPtr> works;
      for (int i = 0; i < 8; ++i) {
        works.push_back(context.group()->all_gather(std::as_bytes(std::span(input)),
                                                    Dtype::kFloat32, copy_out));
        if (context.rank() == 1 && i == round % 8) throw ValueError("boom");
      }
      for (const auto& work : works) work->wait();
    };
    EXPECT_EQ(error_message<ValueError>([&] { launch(3, body); }), "boom");
  }
}

TEST(Failure, EndsACallOnlyWhenNoPeerReadsItsBuffersAnyMore) {
  test::RankLatch reading(1), poisoned(1);
  std::atomic<bool> rank_0_has_ended = false;
  WorkPtr survivor;  // outlives rank 2's body, so that its exception passes at once
  const auto body = [&](RankContext& context) {
    auto& group = *context.group();
    // Holds nothing of the body's stack: rank 2's Work outlives it.
    const auto consume = [&reading, &poisoned, &rank_0_has_ended,
                          rank = context.rank()](PeerSpans) {
      if (rank != 1) return;
      reading.count_down();
      poisoned.wait();
      std::this_thread::sleep_for(20ms);  // for rank 0 to make the mistake
      EXPECT_FALSE(rank_0_has_ended);
    };
    auto work = group.all_gather({}, Dtype::kFloat32, consume);
    if (context.rank() == 2) {
      survivor = std::move(work);
      reading.wait();
      throw ValueError("boom");
    }
    if (context.rank() == 1) {
      EXPECT_THROW(group.barrier({.queue = CollectiveQueue::kReduce})->wait(), CollectiveError);
      poisoned.count_down();
    }
    EXPECT_THROW(work->wait(), CollectiveError);
    if (context.rank() == 0) rank_0_has_ended = true;
  };
  EXPECT_EQ(error_message<ValueError>([&] { launch(3, body); }), "boom");
}

TEST(Failure, OfARankThatGoesOnAfterAnExceptionTookItsCall) {
  const auto errors = errors_of(2, [](RankContext& context) {
    if (context.rank() == 0) {
      try {
        const auto work = context.group()->barrier(kLayer);
        throw ValueError("caught");
      } catch (const ValueError&) {
      }
      context.group()->barrier();
    } else {
      context.group()->recv({}, 0, 0, Dtype::kFloat32)->wait();
    }
  });
  const std::string cause =
      "rank 0 gave up barrier [group world, sequence 0, layers.1] because of an exception";
  EXPECT_THAT(errors, ElementsAre("barrier [group world, sequence 1]: " + cause,
                                  "recv [group world, rank 0 to 1, tag 0, sequence 0]: " + cause));
}

TEST(Failure, OfACallThatARankHasTakenBackComesWithTheDeadline) {
  test::RankLatch taken_back(1), failed(1);
  const auto errors = errors_of(
      2,
      [&](RankContext& context) {
        if (context.rank() == 0) {
          try {
            const auto work = context.group()->barrier(kLayer);
            throw ValueError("caught");
          } catch (const ValueError&) {
          }
          taken_back.count_down();
          return failed.wait();
        }
        taken_back.wait();
        try {
          context.group()->barrier(kLayer)->wait();
        } catch (const CollectiveError&) {
          failed.count_down();
          throw;
        }
      },
      200ms);
  EXPECT_EQ(errors[1],
            "barrier [group world, sequence 0, layers.1]: not joined within 200 ms by rank 0; "
            "waiting: rank 1");
}

// The second attempt has the line of the first, which did not come to its end.
TEST(Failure, OfASubgroupMayBeFollowedByAnotherAttempt) {
  const auto errors = errors_of(
      2,
      [](RankContext& context) {
        const int both[] = {0, 1};
        if (context.rank() == 1) return;
        EXPECT_THROW(context.group()->subgroup(both, "pair"), CollectiveError);
        context.group()->subgroup(both, "pair");
      },
      200ms);
  EXPECT_THAT(errors[0], ::testing::HasSubstr("rank 1 has left"));
}

TEST(Failure, OfARankThatLeavesBeforeASecondSubgroupOfOneName) {
  const auto errors = errors_of(2, [](RankContext& context) {
    const int both[] = {0, 1};
    context.group()->subgroup(both, "pair");
    if (context.rank() == 0) context.group()->subgroup(both, "pair");
  });
  EXPECT_THAT(errors[0], ::testing::HasSubstr("rank 1 has left; waiting: rank 0"));
}

TEST(Failure, OfARankThatLeavesAfterAnExceptionTookItsCall) {
  test::RankLatch taken_back(1);
  const auto errors = errors_of(
      2,
      [&](RankContext& context) {
        if (context.rank() == 1) {
          taken_back.wait();
          return context.group()->barrier(kLayer)->wait();
        }
        try {
          const auto work = context.group()->barrier(kLayer);
          throw ValueError("caught");
        } catch (const ValueError&) {
        }
        taken_back.count_down();
      },
      500ms);
  EXPECT_EQ(errors[1],
            "barrier [group world, sequence 0, layers.1]: rank 0 gave up barrier [group world, "
            "sequence 0, layers.1] because of an exception");
}

TEST(Failure, OfAConsumerEndsWhatItHasPostedToAGroupOfItsOwn) {
  const auto errors = errors_of(2, [](RankContext& context) {
    auto& group = *context.group();
    const int own[] = {context.rank()};
    const auto alone = group.subgroup(own, "alone");
    WorkPtr inner;
    const auto outer = group.all_gather({}, Dtype::kFloat32, [&](PeerSpans) {
      if (context.rank() == 0) return;
      inner = alone->barrier({.label = "inner"});
      throw ShapeError("boom");
    });
    EXPECT_THROW(outer->wait(), Error);
    if (inner != nullptr) inner->wait();
  });
  EXPECT_THAT(errors[1], ::testing::HasSubstr("inner]: rank 1 failed: boom"));
}

TEST(Failure, OfARankThatHasLeftBeforeComesAtOnce) {
  const auto start = std::chrono::steady_clock::now();
  const auto errors = errors_of(2, [](RankContext& context) {
    if (context.rank() == 1) return;
    std::this_thread::sleep_for(100ms);  // for rank 1 to leave
    context.group()->barrier()->wait();
  });
  EXPECT_THAT(errors[0], ::testing::HasSubstr("rank 1 has left; waiting: rank 0"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);  // half the deadline is 30 s
}

}  // namespace
}  // namespace moegrad::collective_failure_test
