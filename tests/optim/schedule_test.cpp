// SPDX-License-Identifier: Apache-2.0
#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <limits>
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

TEST(Schedule, RisesLinearlyBeforeAnyOfThem) {
  for (const auto& schedule :
       {constant_with_warmup(2.0, 4), linear_with_warmup(2.0, 4, 9), cosine_with_warmup(2.0, 4, 9),
        cosine_with_min_lr(2.0, 4, 9, 0.5), cosine_with_restarts(2.0, 4, 9, 2),
        polynomial_with_warmup(2.0, 4, 9, 2, 0.1), inverse_sqrt(2.0, 4),
        warmup_stable_decay(2.0, 4, 3, 2, Decay::kCosine)}) {
    for (std::int64_t step = 0; step <= 4; ++step) {
      EXPECT_EQ(schedule(step), 0.5 * static_cast<double>(step));
    }
  }
}

TEST(Schedule, StaysAtItsLastRate) {
  EXPECT_EQ(linear_with_warmup(2.0, 4, 9)(20), 0.0);
  EXPECT_EQ(cosine_with_restarts(2.0, 4, 9, 2)(9), 0.0);
  EXPECT_EQ(cosine_with_restarts(2.0, 4, 9, 2)(10), 0.0);
  EXPECT_EQ(polynomial_with_warmup(2.0, 4, 9, 2, 0.1)(9), 0.1);
  EXPECT_EQ(polynomial_with_warmup(2.0, 4, 9, 2, 0.1)(20), 0.1);
  EXPECT_EQ(polynomial_with_warmup(2.0, 4, 9, 0.5, 0.1)(20), 0.1);
  EXPECT_EQ(warmup_stable_decay(2.0, 4, 3, 2, Decay::kCosine)(9), 0.0);
}

TEST(Schedule, InverseSqrtHasATimeScale) {
  EXPECT_EQ(inverse_sqrt(2.0, 4)(16), 1.0);  // of the warm-up
  EXPECT_DOUBLE_EQ(inverse_sqrt(2.0, 4, 6)(10 - 2 + 20), 2.0 / std::sqrt(30.0 / 6.0));
  EXPECT_EQ(inverse_sqrt(2.0, 0)(30'000), 1.0);  // 10000 steps without warm-up
}

TEST(Schedule, RejectsWhatCannotBe) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(message_of<ValueError>([] { constant(-1.0); }),
            "constant: lr must be finite and >= 0, got -1");
  EXPECT_EQ(message_of<ValueError>([] { constant_with_warmup(kInfinity, 1); }),
            "constant_with_warmup: lr must be finite and >= 0, got inf");
  EXPECT_EQ(message_of<ValueError>([] { constant_with_warmup(1.0, -1); }),
            "constant_with_warmup: warmup_steps must be >= 0, got -1");
  EXPECT_EQ(message_of<ValueError>([] { linear_with_warmup(1.0, -1, 10); }),
            "linear_with_warmup: warmup_steps must be in [0, 10] (total_steps), got -1");
  EXPECT_EQ(message_of<ValueError>([] { cosine_with_min_lr(1.0, 1, 10, 1.5); }),
            "cosine_with_min_lr: min_lr_rate must be in [0, 1], got 1.5");
  EXPECT_EQ(message_of<ValueError>([] { cosine_with_restarts(1.0, 1, 10, 0); }),
            "cosine_with_restarts: cycles must be >= 1, got 0");
  EXPECT_EQ(message_of<ValueError>([] { polynomial_with_warmup(1.0, 1, 10, 0, 0); }),
            "polynomial_with_warmup: power must be finite and > 0, got 0");
  EXPECT_EQ(message_of<ValueError>([] { polynomial_with_warmup(1.0, 1, 10, 1, 1); }),
            "polynomial_with_warmup: end must be in [0, 1) (lr), got 1");
  EXPECT_EQ(message_of<ValueError>([] { inverse_sqrt(1.0, -1); }),
            "inverse_sqrt: warmup_steps must be >= 0, got -1");
  EXPECT_EQ(message_of<ValueError>([] { inverse_sqrt(1.0, 1, 0); }),
            "inverse_sqrt: timescale must be >= 1, got 0");
  EXPECT_EQ(message_of<ValueError>([] { cosine_with_warmup(1.0, 11, 10); }),
            "cosine_with_warmup: warmup_steps must be in [0, 10] (total_steps), got 11");
  EXPECT_EQ(message_of<ValueError>([] { warmup_stable_decay(1.0, 1, -2, 3); }),
            "warmup_stable_decay: steps must be >= 0, got 1, -2 and 3");
}

TEST(Schedule, CountsStepsFromZeroAndAsFarAsTheyGo) {
  for (const auto& schedule : {constant_with_warmup(1, 2), linear_with_warmup(1, 2, 10),
                               polynomial_with_warmup(1, 2, 10, 1, 0), cosine_with_warmup(1, 2, 10),
                               inverse_sqrt(1, 2), warmup_stable_decay(1, 2, 3, 4)}) {
    EXPECT_EQ(message_of<ValueError>([&] { schedule(-1); }), "schedule: step must be >= 0, got -1");
  }
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_DOUBLE_EQ(inverse_sqrt(1, 0, kMost)(kMost), 1 / std::sqrt(2.0));
}

}  // namespace
}  // namespace moegrad::optim::schedule_test
