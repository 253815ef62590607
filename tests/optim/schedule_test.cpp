// SPDX-License-Identifier: Apache-2.0
#include "optim/schedule.h"

#include <cmath>
#include <numbers>

#include "tests/testing.h"

namespace moegrad::optim::schedule_test {
namespace {

using test::message_of;

TEST(Schedule, ConstantStaysConstant) {
  const auto schedule = constant(0.3);
  EXPECT_EQ(schedule(0), 0.3);
  EXPECT_EQ(schedule(1'000'000), 0.3);
}

TEST(Schedule, CosineWithWarmupIsHuggingFaces) {
  const auto schedule = cosine_with_warmup(3e-3, 5, 30);
  EXPECT_EQ(schedule(0), 0.0);
  EXPECT_DOUBLE_EQ(schedule(4), 3e-3 * 4 / 5);
  EXPECT_EQ(schedule(5), 3e-3);
  for (std::int64_t t = 5; t <= 30; ++t) {
    const double angle = std::numbers::pi * static_cast<double>(t - 5) / 25.0;
    EXPECT_NEAR(schedule(t), 3e-3 * std::max(0.0, 0.5 * (1.0 + std::cos(angle))), 1e-18);
  }
  EXPECT_EQ(schedule(30), 0.0);
}

TEST(Schedule, CosineWithoutWarmupStartsAtTheTop) {
  EXPECT_EQ(cosine_with_warmup(1.0, 0, 10)(0), 1.0);
  EXPECT_DOUBLE_EQ(cosine_with_warmup(1.0, 0, 10)(5), 0.5);
  EXPECT_EQ(cosine_with_warmup(1.0, 10, 10)(10), 1.0);  // nothing to decay over
}

TEST(Schedule, WarmupStableDecayIsPiecewiseLinear) {
  const auto schedule = warmup_stable_decay(2.0, 4, 10, 5);
  EXPECT_EQ(schedule(0), 0.0);
  EXPECT_EQ(schedule(1), 0.5);
  EXPECT_EQ(schedule(4), 2.0);
  EXPECT_EQ(schedule(13), 2.0);
  EXPECT_EQ(schedule(14), 2.0);
  EXPECT_DOUBLE_EQ(schedule(15), 1.6);
  EXPECT_DOUBLE_EQ(schedule(18), 0.4);
  EXPECT_EQ(schedule(19), 0.0);
  EXPECT_EQ(schedule(1000), 0.0);
}

TEST(Schedule, RejectsWhatCannotBe) {
  EXPECT_EQ(message_of<ValueError>([] { cosine_with_warmup(1.0, 11, 10); }),
            "cosine_with_warmup: warmup_steps must be in [0, 10] (total_steps), got 11");
  EXPECT_EQ(message_of<ValueError>([] { warmup_stable_decay(1.0, 1, -2, 3); }),
            "warmup_stable_decay: steps must be >= 0, got 1, -2 and 3");
}

}  // namespace
}  // namespace moegrad::optim::schedule_test
