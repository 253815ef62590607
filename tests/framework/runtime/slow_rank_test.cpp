// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/slow_rank.h"

#include <algorithm>
#include <tuple>

#include "tests/testing.h"

namespace moegrad {
namespace {

using std::chrono::nanoseconds;
using Windows = std::vector<std::vector<RankTime>>;

/// Compute times; no communication.
std::vector<RankTime> compute(const std::vector<std::int64_t>& times) {
  std::vector<RankTime> ranks;
  for (const auto time : times) ranks.push_back({nanoseconds(time), nanoseconds(0)});
  return ranks;
}
std::vector<RankTime> communication(const std::vector<std::int64_t>& times) {
  auto ranks = compute(times);
  for (auto& rank : ranks) std::swap(rank.compute, rank.communication);
  return ranks;
}

const auto kClean = compute({100, 100, 100, 100});
const auto kSlow = compute({100, 100, 120, 100});  // rank 2

TEST(SlowRank, IsNamedInTheThirdWindowInARow) {
  EXPECT_EQ(
      find_slow_ranks({kClean, kSlow, kSlow, kSlow}),
      (std::vector<SlowRank>{{.rank = 2, .what = SlowIn::kCompute, .window = 3, .ratio = 1.2}}));
}

TEST(SlowRank, TwoWindowsInARowAreNotEnough) {
  EXPECT_TRUE(find_slow_ranks({kSlow, kSlow}).empty());
  EXPECT_TRUE(find_slow_ranks({kSlow, kSlow, kClean, kSlow, kSlow, kClean, kSlow}).empty());
}

TEST(SlowRank, IsNamedOncePerRow) {
  EXPECT_EQ(find_slow_ranks({6, kSlow}).size(), 1U);
  const auto slow = find_slow_ranks({kSlow, kSlow, kSlow, kSlow, kClean, kSlow, kSlow, kSlow});
  ASSERT_EQ(slow.size(), 2U);
  EXPECT_EQ(slow[0].window, 2U);
  EXPECT_EQ(slow[1].window, 7U);
}

TEST(SlowRank, KnowsComputeFromCommunication) {
  const auto slow = communication({100, 100, 100, 200});
  EXPECT_EQ(find_slow_ranks({3, slow}),
            (std::vector<SlowRank>{
                {.rank = 3, .what = SlowIn::kCommunication, .window = 2, .ratio = 2.0}}));
}

TEST(SlowRank, ExactlyElevenTenthsIsNotSlow) {
  // In units in which 1.1 times the median is no double.
  for (const std::int64_t unit : {1, 3, 7, 1'000'003}) {
    const auto slow = [&](std::int64_t own) {
      return !find_slow_ranks({3, compute({own, 10 * unit, 10 * unit, 10 * unit})}).empty();
    };
    EXPECT_FALSE(slow(11 * unit)) << unit;
    EXPECT_TRUE(slow(11 * unit + 1)) << unit;
  }
}

TEST(SlowRank, IsMeasuredByTheMedianOfTheOthers) {
  // Of 90, 100, 300 the median is 100; of the even number 90, 100, 110, 300 it is 105.
  EXPECT_EQ(find_slow_ranks({3, compute({111, 90, 100, 300})}).at(0).rank, 0);
  EXPECT_DOUBLE_EQ(find_slow_ranks({3, compute({210, 90, 100, 110, 300})}).at(0).ratio, 2.0);
  // One very slow rank makes nobody else look quick or slow.
  EXPECT_EQ(find_slow_ranks({3, compute({100, 104, 96, 100'000})}).size(), 1U);
}

TEST(SlowRank, AlternatingRanksAreNoSlowRank) {
  Windows windows;
  for (std::size_t window = 0; window < 30; ++window) {
    std::vector<std::int64_t> times(5, 100);
    times[window % 5] = times[(window + 2) % 5] = 150;
    windows.push_back(compute(times));
  }
  EXPECT_TRUE(find_slow_ranks(windows).empty());
}

TEST(SlowRank, ASlowSmallShareIsNoSlowRank) {
  auto ranks = compute({1000, 1000, 1000, 1000});
  for (auto& rank : ranks) rank.communication = nanoseconds(50);
  ranks[1].communication = nanoseconds(100);
  EXPECT_TRUE(find_slow_ranks({3, ranks}).empty());
  // With the compute beside it, it is one, and the larger excess gives the class.
  ranks[1].compute = nanoseconds(1060);
  EXPECT_EQ(find_slow_ranks({3, ranks}).at(0).what, SlowIn::kCompute);
  ranks[1] = {.compute = nanoseconds(1050), .communication = nanoseconds(111)};
  EXPECT_EQ(find_slow_ranks({3, ranks}).at(0).what, SlowIn::kCommunication);
}

TEST(SlowRank, FewerThanFourRanksNameNobody) {
  EXPECT_TRUE(find_slow_ranks({9, compute({100, 100, 1000})}).empty());
  EXPECT_TRUE(find_slow_ranks({9, compute({100, 1000})}).empty());
  EXPECT_TRUE(find_slow_ranks({9, compute({100})}).empty());
  EXPECT_TRUE(find_slow_ranks({}).empty());
}

TEST(SlowRank, WithoutWorkThereIsNoMeasure) {
  EXPECT_TRUE(find_slow_ranks({3, compute({1000, 0, 0, 0})}).empty());
}

TEST(SlowRank, RefusesWindowsOfOtherRankCounts) {
  EXPECT_EQ(testing::message_of<ValueError>([] {
              find_slow_ranks({kClean, compute({1, 2, 3, 4, 5})});
            }),
            "find_slow_ranks: window 1 must have 4 ranks as the first, got 5");
}

/// 100 ms of compute and 10 ms of communication, +- 2.5 % per window and rank and, in one of 50, an
/// outlier of up to half as much again: what ranks that share two cores show over windows of some
/// steps.
Windows noisy_windows(std::size_t count, std::size_t ranks) {
  const Random random(11, "slow rank noise");
  Windows windows(count, std::vector<RankTime>(ranks));
  for (std::size_t i = 0; i < count * ranks; ++i) {
    const auto draw = [&](std::uint64_t which) {
      double time = 1e8 * (1 + 0.025 * random.normal(6 * i + which));
      if (random.uniform(6 * i + which + 1) < 0.02) {
        time *= 1 + 0.5 * random.uniform(6 * i + which + 2);
      }
      return nanoseconds(static_cast<std::int64_t>(time));
    };
    windows[i / ranks][i % ranks] = {.compute = draw(0), .communication = draw(3) / 10};
  }
  return windows;
}

TEST(SlowRank, NoFalseAlarmInAThousandCleanWindows) {
  for (const std::size_t ranks : {4U, 5U, 8U}) {
    EXPECT_TRUE(find_slow_ranks(noisy_windows(1000, ranks)).empty()) << ranks;
  }
}

TEST(SlowRank, IsFoundInTheSameNoise) {
  auto windows = noisy_windows(20, 8);
  for (std::size_t window = 10; window < 20; ++window) {
    windows[window][5].compute = windows[window][5].compute * 13 / 10;
  }
  const auto slow = find_slow_ranks(windows);
  ASSERT_EQ(slow.size(), 1U);
  EXPECT_EQ(std::tie(slow[0].rank, slow[0].what), std::tuple(5, SlowIn::kCompute));
  EXPECT_EQ(slow[0].window, 12U);
}

TEST(RankTimes, SumTheWorkOfPhasesAndOfCollectives) {
  const auto span = [](SpanKind kind, std::int64_t busy) {
    Span result;
    result.kind = kind;
    result.busy = nanoseconds(busy);
    return result;
  };
  EXPECT_EQ(rank_time({span(SpanKind::kPhase, 1), span(SpanKind::kCollective, 10),
                       span(SpanKind::kModule, 100), span(SpanKind::kPhase, 2)}),
            (RankTime{.compute = nanoseconds(3), .communication = nanoseconds(10)}));
}

}  // namespace
}  // namespace moegrad
