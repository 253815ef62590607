// SPDX-License-Identifier: Apache-2.0
#include "tools/report/step_bins.h"

#include <gtest/gtest.h>

#include <cmath>

namespace moegrad::tools::step_bins_test {
namespace {

TEST(Curve, KeepsEachStepWhileThereIsRoom) {
  Curve curve;
  for (int step = 0; step < Curve::kMostBins; ++step) curve.add(step, step % 7);
  const auto bins = curve.bins();
  ASSERT_EQ(std::ssize(bins), Curve::kMostBins);
  for (int step = 0; step < Curve::kMostBins; ++step) {
    const auto& bin = bins[static_cast<std::size_t>(step)];
    EXPECT_EQ(bin.count, 1);
    EXPECT_EQ(bin.step(), step);
    EXPECT_EQ(bin.low, step % 7);
    EXPECT_EQ(bin.high, step % 7);
    EXPECT_EQ(bin.mean(), step % 7);
  }
}

TEST(Curve, JoinsStepsInPairsWhenThereAreTooMany) {
  Curve curve;
  constexpr int kSteps = 100'000;
  for (int step = 0; step < kSteps; ++step) curve.add(step, step == 777 ? 1000 : step % 2);
  const auto bins = curve.bins();
  EXPECT_EQ(std::ssize(bins), 391);  // of 256 steps
  EXPECT_EQ(bins[3].count, 256);
  EXPECT_EQ(bins[3].low, 0);
  EXPECT_EQ(bins[3].high, 1000);
  EXPECT_EQ(bins[3].mean(), (127 + 1000.0) / 256);
  EXPECT_EQ(bins[3].step(), 3 * 256 + 127.5);
  EXPECT_EQ(bins[4].high, 1);
  EXPECT_EQ(bins.back().count, kSteps - 390 * 256);
}

TEST(Curve, IsBoundedByTheDistanceOfStepsNotByTheirNumber) {
  Curve curve;
  for (const std::int64_t step : {std::int64_t{1} << 49, std::int64_t{0}, std::int64_t{5}}) {
    curve.add(step, 1);
  }
  ASSERT_EQ(curve.bins().size(), 2U);
  EXPECT_EQ(curve.bins()[0].count, 2);
  EXPECT_EQ(curve.bins()[0].step(), 2.5);
}

TEST(Curve, ABinWithoutNumbersIsAGapAndOneWithSomeShowsThose) {
  Curve curve;
  curve.add(0, 1);
  curve.add(1, NAN);
  curve.add(2, 3);
  curve.add(3, INFINITY);
  curve.add(3, 5);
  const auto bins = curve.bins();
  ASSERT_EQ(bins.size(), 4U);
  EXPECT_EQ(bins[1].count, 0);
  EXPECT_EQ(bins[3].count, 1);
  EXPECT_EQ(bins[3].high, 5);
  EXPECT_EQ(curve.missing(), 2);
  EXPECT_EQ(curve.last(), 5);
}

}  // namespace
}  // namespace moegrad::tools::step_bins_test
