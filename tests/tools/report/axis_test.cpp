// SPDX-License-Identifier: Apache-2.0
#include "tools/report/axis.h"

#include <gmock/gmock.h>

#include <cmath>

namespace moegrad::tools::axis_test {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> labels(const AxisRange& range, int count, bool integers = false) {
  std::vector<std::string> texts;
  for (const auto& tick : ticks(range, count, integers)) texts.push_back(tick.label);
  return texts;
}

TEST(Ticks, AreRoundNumbersWithinTheRange) {
  EXPECT_THAT(labels({0, 10}, 5), ElementsAre("0", "2", "4", "6", "8", "10"));
  EXPECT_THAT(labels({1.37, 5.9}, 5), ElementsAre("2", "3", "4", "5"));
  EXPECT_THAT(labels({-0.011, 0.02}, 4), ElementsAre("-0.01", "0", "0.01", "0.02"));
  EXPECT_THAT(labels({0, 3e-5}, 3), ElementsAre("0", "1e-05", "2e-05", "3e-05"));
  EXPECT_THAT(labels({0, 52000}, 3), ElementsAre("0", "20k", "40k"));
  EXPECT_THAT(labels({0, 2.1e6}, 5), ElementsAre("0", "0.5M", "1.0M", "1.5M", "2.0M"));
  EXPECT_THAT(labels({0, 3e9}, 3), ElementsAre("0", "1G", "2G", "3G"));
}

TEST(Ticks, OfStepsAreIntegers) {
  EXPECT_THAT(labels({-0.5, 1.5}, 6, true), ElementsAre("0", "1"));
  EXPECT_THAT(labels({6.5, 8.5}, 6, true), ElementsAre("7", "8"));
  EXPECT_THAT(labels({-0.5, 100'000.5}, 6, true),
              ElementsAre("0", "20k", "40k", "60k", "80k", "100k"));
}

TEST(Ticks, AreFewAndToldApartHoweverLargeOrSmallTheNumbers) {
  for (const double scale : {1e-140, 1e-20, 1e-4, 1.0, 3.3, 9999.0, 1e4, 1e8, 1e14, 1e20, 1e149}) {
    for (const double low : {-1.0, 0.0, 0.3, 0.999}) {
      const auto range = axis_range(low * scale, scale);
      const auto all = ticks(range, 5);
      EXPECT_GE(all.size(), 2U) << scale << ' ' << low;
      EXPECT_LE(all.size(), 7U) << scale << ' ' << low;
      for (std::size_t i = 1; i < all.size(); ++i) EXPECT_NE(all[i].label, all[i - 1].label);
      for (const auto& tick : all) EXPECT_LE(tick.label.size(), 10U) << tick.label;
    }
  }
}

TEST(AxisRange, IsNeverEmpty) {
  EXPECT_EQ(axis_range(0, 0).low, -1);
  EXPECT_EQ(axis_range(0, 0).high, 1);
  EXPECT_EQ(axis_range(50, 50).low, 45);
  EXPECT_EQ(axis_range(-50, -50).high, -45);
  EXPECT_EQ(axis_range(0, 10, 0.05).low, -0.5);
  EXPECT_EQ(axis_range(0, 10, 0.05).high, 10.5);
  const double next = std::nextafter(1.0, 2.0);
  EXPECT_GT(axis_range(1, next).high - axis_range(1, next).low, 0.1);
  EXPECT_EQ(axis_range(0, 10).fraction(2.5), 0.25);
}

}  // namespace
}  // namespace moegrad::tools::axis_test
