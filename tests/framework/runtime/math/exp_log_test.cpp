// SPDX-License-Identifier: Apache-2.0
// The two phases of exp and log have the accuracy that they promise: a result that is rounded from
// a worse value is another one for few arguments only, which no sample meets.
#include "framework/runtime/math/exp_log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>

namespace moegrad::exp_log_test {
namespace {

using math::DoubleDouble;

class Samples {
 public:
  /// Even over [low, high); its second part is any of those that it may have.
  DoubleDouble next(double low, double high) {
    const double first = low + unit() * (high - low);
    return math::fast_two_sum(first, first * 0x1p-53 * (unit() - 0.5));
  }

 private:
  double unit() { return static_cast<double>(random_() >> 11U) * 0x1p-53; }

  std::mt19937_64 random_{1};
};

double difference(const DoubleDouble& a, const DoubleDouble& b) { return std::abs((a + -b).high); }

// In parts of the first value.
double difference(const math::Scaled& a, const math::Scaled& b) {
  const auto scale = math::power_of_two(b.exponent - a.exponent);
  return difference(a.value, b.value * scale) / a.value.high;
}

constexpr int kSamples = 20'000;

TEST(ExpLog, QuickPhasesAreWithinTheirErrorsOfTheAccurateOnes) {
  Samples samples;
  double worst = 0.0, worst_log = 0.0, worst_near_one = 0.0;
  const auto of_log = [](const DoubleDouble& x) {
    const auto accurate = math::log_accurate(x);
    return difference(math::log_quick(x), accurate) / math::log_error(accurate);
  };
  for (int i = 0; i < kSamples; ++i) {
    const auto x = samples.next(-700.0, 700.0);
    worst = std::max(worst, difference(math::exp_accurate(x), math::exp_quick(x)));
    worst_log = std::max(worst_log, of_log(samples.next(1e-3, 16.0)));
    worst_near_one = std::max(worst_near_one, of_log(samples.next(0.99, 1.01)));
  }
  EXPECT_LT(worst, 0x1p-66);
  EXPECT_LT(worst_log, 1.0);
  EXPECT_LT(worst_near_one, 1.0);
}

// e^a e^b = e^(a + b), where the sum is exact.
TEST(ExpLog, AccurateExpOfASumIsTheProduct) {
  Samples samples;
  double worst = 0.0;
  for (int i = 0; i < kSamples; ++i) {
    const double a = samples.next(-300.0, 300.0).high, b = samples.next(-300.0, 300.0).high;
    const auto of_a = math::exp_accurate({a}), of_b = math::exp_accurate({b});
    const math::Scaled product{of_a.value * of_b.value, of_a.exponent + of_b.exponent};
    worst = std::max(worst, difference(math::exp_accurate(math::two_sum(a, b)), product));
  }
  EXPECT_LT(worst, 0x1p-97);
}

TEST(ExpLog, AccurateLogIsTheInverseOfExp) {
  Samples samples;
  double worst = 0.0;
  for (int i = 0; i < kSamples; ++i) {
    const auto x = samples.next(0.25, 4.0);
    const auto back = math::exp_accurate(math::log_accurate(x));
    worst = std::max(worst, difference(math::Scaled{x, 0}, back));
  }
  EXPECT_LT(worst, 0x1p-97);
}

}  // namespace
}  // namespace moegrad::exp_log_test
