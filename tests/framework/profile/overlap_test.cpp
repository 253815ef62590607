// SPDX-License-Identifier: Apache-2.0
#include "framework/profile/overlap.h"

#include <gtest/gtest.h>

namespace moegrad::overlap_test {
namespace {

using std::chrono::nanoseconds;

SpanClock::time_point at(std::int64_t time) { return SpanClock::time_point(nanoseconds(time)); }
Interval interval(std::int64_t begin, std::int64_t end) { return {at(begin), at(end)}; }

Span span(SpanKind kind, Lane lane, std::int64_t begin, std::int64_t end) {
  return {.kind = kind, .lane = lane, .begin = at(begin), .end = at(end)};
}
Span phase(std::int64_t begin, std::int64_t end, Lane lane = Lane::kCompute) {
  return span(SpanKind::kPhase, lane, begin, end);
}
Span wait(std::int64_t begin, std::int64_t end) {
  return span(SpanKind::kWait, Lane::kCompute, begin, end);
}
Span collective(Lane lane, std::int64_t begin, std::int64_t end) {
  return span(SpanKind::kCollective, lane, begin, end);
}

TEST(Intervals, UniteSortsMergesAndDropsEmptyOnes) {
  EXPECT_EQ(unite({interval(5, 7), interval(0, 2), interval(1, 3), interval(9, 9), interval(7, 8),
                   interval(5, 6)}),
            (Intervals{interval(0, 3), interval(5, 8)}));
  EXPECT_TRUE(unite({}).empty());
}

TEST(Intervals, SubtractLeavesTheRest) {
  const Intervals a = {interval(0, 10), interval(20, 30), interval(40, 50)};
  EXPECT_EQ(subtract(a, {}), a);
  EXPECT_EQ(subtract(a, a), Intervals());
  EXPECT_EQ(subtract({}, a), Intervals());
  // One cut reaches into two, one stands between, one is within, one covers the rest.
  EXPECT_EQ(subtract(a, {interval(2, 4), interval(8, 22), interval(32, 35), interval(40, 60)}),
            (Intervals{interval(0, 2), interval(4, 8), interval(22, 30)}));
  EXPECT_EQ(subtract(a, {interval(10, 20), interval(30, 40)}), a);
}

TEST(Intervals, LengthIsTheSum) {
  EXPECT_EQ(length({interval(0, 3), interval(5, 12)}), nanoseconds(10));
}

TEST(Overlap, ComputeIsTheComputeAndOptimizerLanesLessTheWaits) {
  const std::vector<Span> spans = {span(SpanKind::kModule, Lane::kCompute, 10, 40),
                                   wait(20, 25),
                                   phase(10, 50),
                                   collective(Lane::kGather, 0, 25),
                                   phase(60, 80, Lane::kOptimizer),
                                   wait(75, 90)};
  EXPECT_EQ(compute_intervals(spans),
            (Intervals{interval(10, 20), interval(25, 50), interval(60, 75)}));
}

TEST(Overlap, IsHiddenWhereTheRankComputes) {
  const Intervals compute = {interval(10, 20), interval(30, 40)};
  const auto hidden = [&](std::int64_t begin, std::int64_t end) {
    const auto overlap = overlap_of(collective(Lane::kGather, begin, end), compute);
    EXPECT_EQ(overlap.total, nanoseconds(end - begin));
    EXPECT_EQ(overlap.exposed(), overlap.total - overlap.hidden);
    return overlap.hidden.count();
  };
  EXPECT_EQ(hidden(12, 18), 6);   // within
  EXPECT_EQ(hidden(21, 29), 0);   // between
  EXPECT_EQ(hidden(0, 100), 20);  // around
  EXPECT_EQ(hidden(15, 35), 10);  // across
  EXPECT_EQ(hidden(15, 15), 0);   // empty
}

TEST(Overlap, IsSummedPerLane) {
  const std::vector<Span> spans = {phase(0, 100),
                                   wait(40, 60),
                                   collective(Lane::kGather, 0, 10),
                                   collective(Lane::kGather, 30, 50),
                                   collective(Lane::kGather, 30, 50),  // of another group
                                   collective(Lane::kReduce, 90, 110)};
  const auto lanes = overlap_per_lane(spans);
  const auto& gather = lanes[static_cast<std::size_t>(Lane::kGather)];
  EXPECT_EQ(gather.total, nanoseconds(50));
  EXPECT_EQ(gather.hidden, nanoseconds(30));
  EXPECT_DOUBLE_EQ(gather.hidden_share(), 0.6);
  const auto& reduce = lanes[static_cast<std::size_t>(Lane::kReduce)];
  EXPECT_EQ(reduce.total, nanoseconds(20));
  EXPECT_EQ(reduce.hidden, nanoseconds(10));
  EXPECT_EQ(lanes[static_cast<std::size_t>(Lane::kCompute)].total, nanoseconds(0));
}

TEST(Overlap, OfNothingIsWhollyHidden) { EXPECT_EQ(Overlap().hidden_share(), 1.0); }

}  // namespace
}  // namespace moegrad::overlap_test
