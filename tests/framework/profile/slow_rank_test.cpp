// SPDX-License-Identifier: Apache-2.0
#include "framework/profile/slow_rank.h"

#include <thread>

#include "framework/runtime/rank_context.h"
#include "tests/testing.h"

namespace moegrad::slow_rank_test {
namespace {

using std::chrono::milliseconds, std::chrono::nanoseconds;
using Window = std::vector<WorkTimes>;

/// Each rank's work in one class, 0 in the others.
Window work_in(WorkClass what, const std::vector<std::int64_t>& times) {
  Window ranks(times.size());
  for (std::size_t rank = 0; rank < times.size(); ++rank) {
    ranks[rank][static_cast<std::size_t>(what)] = nanoseconds(times[rank]);
  }
  return ranks;
}
Window compute(const std::vector<std::int64_t>& times) {
  return work_in(WorkClass::kCompute, times);
}

/// Who is named in each of the windows.
std::vector<std::vector<SlowRank>> named_in(const std::vector<Window>& windows) {
  SlowRankFinder finder(static_cast<int>(windows[0].size()));
  std::vector<std::vector<SlowRank>> named;
  for (const auto& window : windows) named.push_back(finder.add(window));
  return named;
}
std::vector<SlowRank> all_named(const std::vector<Window>& windows) {
  std::vector<SlowRank> all;
  for (const auto& named : named_in(windows)) all.insert(all.end(), named.begin(), named.end());
  return all;
}

const auto kClean = compute({100, 100, 100, 100});
const auto kSlow = compute({100, 100, 150, 100});  // rank 2

TEST(SlowRank, IsNamedInTheThirdWindowInARow) {
  const auto named = named_in({kClean, kSlow, kSlow, kSlow});
  EXPECT_EQ(named[3],
            (std::vector<SlowRank>{{.rank = 2, .what = WorkClass::kCompute, .ratio = 1.5}}));
  EXPECT_TRUE(named[2].empty());
}

TEST(SlowRank, TwoWindowsInARowAreNotEnough) {
  EXPECT_TRUE(all_named({kSlow, kSlow}).empty());
  EXPECT_TRUE(all_named({kSlow, kSlow, kClean, kSlow, kSlow, kClean, kSlow}).empty());
}

TEST(SlowRank, IsNamedOncePerRow) {
  EXPECT_EQ(all_named({6, kSlow}).size(), 1U);
  const auto named = named_in({kSlow, kSlow, kSlow, kSlow, kClean, kSlow, kSlow, kSlow});
  for (std::size_t window = 0; window < named.size(); ++window) {
    EXPECT_EQ(named[window].size(), window == 2 || window == 7 ? 1U : 0U) << window;
  }
}

TEST(SlowRank, IsNamedInItsClass) {
  for (std::size_t i = 0; i < kWorkClasses; ++i) {
    const auto what = static_cast<WorkClass>(i);
    auto window = compute({100, 100, 100, 100});
    window[3][i] += nanoseconds(200);
    EXPECT_EQ(all_named({3, window}), (std::vector<SlowRank>{{3, what, 3.0}})) << to_string(what);
  }
}

TEST(SlowRank, IsNotTheOneThatIsSlowInAnotherClassEachTime) {
  auto computing = compute({100, 100, 200, 100}), receiving = compute({100, 100, 100, 100});
  for (auto& rank : computing) rank[1] = nanoseconds(100);
  for (auto& rank : receiving) rank[1] = nanoseconds(100);
  receiving[2][1] = nanoseconds(200);
  EXPECT_TRUE(
      all_named({computing, receiving, computing, receiving, computing, receiving}).empty());
  EXPECT_EQ(all_named({receiving, receiving, receiving}).size(), 1U);
}

TEST(SlowRank, ExactlyThreeTenthsMoreIsNotSlow) {
  for (const std::int64_t unit : {1, 3, 7, 1'000'003}) {
    const auto slow = [&](std::int64_t own) {
      return !all_named({3, compute({own, 10 * unit, 10 * unit, 10 * unit})}).empty();
    };
    EXPECT_FALSE(slow(13 * unit)) << unit;
    EXPECT_TRUE(slow(13 * unit + 1)) << unit;
  }
}

TEST(SlowRank, IsMeasuredByTheMedianOfTheOthers) {
  // The median of 90, 100, 300 is 100; the median of the four values 90, 100, 110, 300 is 105.
  EXPECT_EQ(all_named({3, compute({131, 90, 100, 300})}).at(0).rank, 0);
  EXPECT_DOUBLE_EQ(all_named({3, compute({210, 90, 100, 110, 300})}).at(0).ratio, 2.0);
  // One very slow rank makes nobody else look quick or slow.
  EXPECT_EQ(all_named({3, compute({100, 104, 96, 100'000})}).size(), 1U);
}

TEST(SlowRank, OfTwoIsTheOneThatWorksMore) {
  EXPECT_EQ(all_named({3, compute({100, 140})}),
            (std::vector<SlowRank>{{1, WorkClass::kCompute, 1.4}}));
}

TEST(SlowRank, ASlowSmallShareIsNoSlowRank) {
  auto window = compute({1000, 1000, 1000, 1000});
  for (auto& rank : window) rank[1] = nanoseconds(50);
  window[1][1] = nanoseconds(300);  // six times the others', a quarter of a rank's work
  EXPECT_TRUE(all_named({3, window}).empty());
}

TEST(SlowRank, WindowsWithoutWorkInTheClassArePassedOver) {
  auto save = compute({100, 100, 100, 100});
  for (auto& rank : save) rank[3] = nanoseconds(10);
  save[1][3] = nanoseconds(500);
  const auto named = named_in({save, kClean, kClean, save, kClean, save});
  EXPECT_EQ(named[5], (std::vector<SlowRank>{{1, WorkClass::kCheckpoint, 600.0 / 110}}));
  // One save in which the disk was as quick as the others' begins the count again.
  auto quick = save;
  quick[1][3] = nanoseconds(10);
  EXPECT_TRUE(all_named({save, save, quick, save, save}).empty());
}

TEST(SlowRank, OneAloneOrWithoutWorkIsNone) {
  EXPECT_TRUE(all_named({9, compute({100})}).empty());
  EXPECT_TRUE(all_named({3, compute({1000, 0, 0, 0})}).empty());
}

TEST(SlowRank, RefusesWindowsOfOtherRankCounts) {
  EXPECT_EQ(test::message_of<ValueError>([] { SlowRankFinder(0); }),
            "SlowRankFinder: ranks must be at least 1, got 0");
  EXPECT_EQ(test::message_of<ValueError>([] {
              SlowRankFinder(4).add(compute({1, 2}));
            }),
            "SlowRankFinder: a window must have 4 ranks, got 2");
}

/// Lets the clock go on.
void pass(milliseconds time) { std::this_thread::sleep_for(time); }

TEST(WorkGuard, CountsTheTimeOnTheClockLessWaitsAndInnerGuards) {
  RankContext context;
  const RankContextGuard current(context);
  const auto begin = std::chrono::steady_clock::now();
  {
    const WorkGuard outer(WorkClass::kCompute);
    pass(milliseconds(20));
    add_wait(milliseconds(15));
    const WorkGuard inner(WorkClass::kData);
    pass(milliseconds(10));
  }
  const nanoseconds whole = std::chrono::steady_clock::now() - begin;
  const auto times = context.work()->read();
  EXPECT_GE(times[2], milliseconds(10));
  EXPECT_GE(times[0], milliseconds(5));
  EXPECT_LE(times[0] + times[2], whole - milliseconds(15));
  EXPECT_EQ(times[1] + times[3], nanoseconds(0));
}

TEST(WorkGuard, LeavesTheWaitsOfAnInnerGuardToThatOne) {
  RankContext context;
  const RankContextGuard current(context);
  {
    const WorkGuard outer(WorkClass::kCompute);
    const WorkGuard inner(WorkClass::kData);
    add_wait(std::chrono::hours(-1));  // as good as an hour of work
  }
  const auto times = context.work()->read();
  EXPECT_GE(times[2], std::chrono::hours(1));
  EXPECT_LT(std::chrono::abs(times[0]), std::chrono::minutes(1));
}

TEST(WorkGuard, DoesNotSubtractTheWaitsOfAnotherThreadOfTheRank) {
  RankContext context;
  const RankContextGuard current(context);
  const auto begin = std::chrono::steady_clock::now();
  {
    const WorkGuard guard(WorkClass::kCompute);
    std::thread([&] {
      const RankContextGuard same_rank(context);
      add_wait(std::chrono::hours(1));
    }).join();
    pass(milliseconds(5));
  }
  const nanoseconds whole = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(context.work()->read()[0], milliseconds(5));
  EXPECT_LE(context.work()->read()[0], whole);
}

TEST(WorkGuard, OfAnotherThreadOfTheRankAddsToTheSameTotals) {
  RankContext context;
  std::thread([&] {
    RankContext second({.work = context.work()});
    const RankContextGuard current(second);
    const WorkGuard guard(WorkClass::kCheckpoint);
    add_wait(nanoseconds(-7'000'000'000));  // as good as seven seconds of work
  }).join();
  EXPECT_GE(context.work()->read()[3], std::chrono::seconds(7));
}

}  // namespace
}  // namespace moegrad::slow_rank_test
