// SPDX-License-Identifier: Apache-2.0
#include "train/logs/recent_loads.h"

#include <gtest/gtest.h>

namespace moegrad::training::recent_loads_test {
namespace {

TEST(RecentLoads, AreOfTheLastStepsAloneLayerByLayer) {
  RecentLoads loads;
  EXPECT_EQ(loads.text(), "");
  loads.add({{4, 0}, {1, 3}});
  EXPECT_EQ(loads.text(), "0.00-2.00 0.50-1.50");
  loads.add({{0, 4}, {1, 3}});
  EXPECT_EQ(loads.text(), "1.00-1.00 0.50-1.50");
  EXPECT_EQ(loads.steps(), 2U);
  for (std::size_t step = 0; step < RecentLoads::kSteps; ++step) loads.add({{3, 1}, {0, 2}});
  EXPECT_EQ(loads.steps(), RecentLoads::kSteps);
  EXPECT_EQ(loads.text(), "0.50-1.50 0.00-2.00");
}

TEST(RecentLoads, OfADenseModelAreNone) {
  RecentLoads loads;
  loads.add({});
  EXPECT_EQ(loads.text(), "");
}

}  // namespace
}  // namespace moegrad::training::recent_loads_test
