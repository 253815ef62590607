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

// Windows of 16 steps, recorded from two runs of four ranks on two cores: microseconds of compute
// and communication of each rank. In the second run rank 2 computed 1.3 times as long.
constexpr std::int64_t kRecordedClean[][4][2] = {
    {{150138, 5888}, {146957, 5860}, {160928, 5830}, {144803, 5594}},
    {{128449, 5167}, {129343, 4992}, {126798, 5012}, {122034, 4862}},
    {{143156, 5590}, {144357, 5501}, {138149, 5509}, {129875, 5457}},
    {{133966, 5852}, {142117, 5307}, {142039, 5659}, {140766, 5676}},
    {{121351, 4877}, {120069, 4812}, {117313, 4606}, {118864, 4814}},
    {{125886, 5323}, {126257, 4977}, {121107, 5015}, {129027, 5009}},
    {{123693, 4948}, {119982, 5108}, {116178, 5007}, {117076, 4961}},
    {{120964, 4955}, {131798, 5005}, {126979, 5128}, {126609, 4932}},
    {{129558, 5132}, {130404, 4873}, {127551, 5125}, {127778, 5109}},
    {{119497, 5108}, {119174, 4895}, {123084, 5062}, {117507, 5255}},
    {{133821, 5589}, {126996, 5191}, {141055, 5439}, {131157, 5523}},
    {{155821, 5954}, {155218, 5970}, {157110, 6078}, {157091, 5713}},
};
constexpr std::int64_t kRecordedSlow[][4][2] = {
    {{181124, 8059}, {172206, 8488}, {211871, 10325}, {168078, 7952}},
    {{192957, 8528}, {173599, 9847}, {226627, 9741}, {193947, 9536}},
    {{181392, 7889}, {170250, 8077}, {210852, 8432}, {183379, 9023}},
    {{188318, 8391}, {187636, 8555}, {241362, 9951}, {187559, 9620}},
    {{170390, 6691}, {184332, 6718}, {211112, 6763}, {183473, 6439}},
    {{177438, 8904}, {166267, 7807}, {215849, 9307}, {173765, 8511}},
    {{182404, 6076}, {172823, 6367}, {196635, 6520}, {165037, 6240}},
    {{177658, 8301}, {180384, 8602}, {223561, 7848}, {179204, 8132}},
};

template <std::size_t N>
Windows recorded(const std::int64_t (&rows)[N][4][2]) {
  Windows windows;
  for (const auto& row : rows) {
    auto& window = windows.emplace_back();
    for (const auto& [compute, communication] : row) {
      window.push_back({.compute = std::chrono::microseconds(compute),
                        .communication = std::chrono::microseconds(communication)});
    }
  }
  return windows;
}

TEST(SlowRank, ARecordedCleanRunNamesNobody) {
  EXPECT_TRUE(find_slow_ranks(recorded(kRecordedClean)).empty());
}

TEST(SlowRank, ARecordedSlowRankIsNamed) {
  const auto slow = find_slow_ranks(recorded(kRecordedSlow));
  ASSERT_EQ(slow.size(), 1U);
  EXPECT_EQ(std::tie(slow[0].rank, slow[0].what, slow[0].window),
            std::tuple(2, SlowIn::kCompute, 2U));
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
