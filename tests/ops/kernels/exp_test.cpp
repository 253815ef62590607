// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/exp.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "framework/runtime/crc32c.h"

namespace moegrad::kernels::exp_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Error in units of the last place of a float of the size of `expected`.
double ulps(float got, double expected) {
  const auto smallest = static_cast<double>(std::numeric_limits<float>::denorm_min());
  const double place = std::max(std::ldexp(1.0, std::ilogb(expected) - 23), smallest);
  return std::abs(static_cast<double>(got) - expected) / place;
}

// Every 997th float between `from` and `to`, which have one sign.
template <class Visit>
void sweep(float from, float to, const Visit& visit) {
  for (auto bits = std::bit_cast<std::uint32_t>(from); bits <= std::bit_cast<std::uint32_t>(to);
       bits += 997) {
    visit(std::bit_cast<float>(bits));
  }
}

TEST(Exp, IsLessThanOneUlpOff) {
  double worst = 0;
  const auto visit = [&](float x) { worst = std::max(worst, ulps(exp(x), std::exp(double{x}))); };
  sweep(0.0F, 88.0F, visit);
  sweep(-0.0F, -87.0F, visit);
  EXPECT_LT(worst, 1.0);
  EXPECT_GT(worst, 0.4);  // rounding alone is half an ulp: the sweep did see something
}

TEST(Exp, GivesDenormalResults) {
  double worst = 0;
  sweep(-87.0F, -103.9F,
        [&](float x) { worst = std::max(worst, ulps(exp(x), std::exp(double{x}))); });
  EXPECT_LT(worst, 1.0);
}

TEST(Exp, IsExactAtZeroAndKeepsTheEdgesOfTheRange) {
  EXPECT_EQ(exp(0.0F), 1.0F);
  EXPECT_EQ(exp(-0.0F), 1.0F);
  EXPECT_LT(exp(88.7228F), kInfinity);
  EXPECT_EQ(exp(88.73F), kInfinity);
  EXPECT_EQ(exp(1e30F), kInfinity);
  EXPECT_EQ(exp(kInfinity), kInfinity);
  EXPECT_EQ(exp(-104.0F), 0.0F);
  EXPECT_EQ(exp(-1e30F), 0.0F);
  EXPECT_EQ(exp(-kInfinity), 0.0F);
  EXPECT_TRUE(std::isnan(exp(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isnan(exp(-std::numeric_limits<float>::quiet_NaN())));
}

// The promise itself, as that of Note [Elementary functions]: less than 1 ulp off are many numbers.
TEST(Exp, OfFloatHasTheseBits) {
  std::vector<float> results;
  for (int i = 0; i < 195 << 13; ++i)
    results.push_back(exp(static_cast<float>(i) * 0x1p-13F - 105.0F));
  EXPECT_EQ(crc32c(std::as_bytes(std::span(results))),
            kFusesMultiplyAdd ? 0x8dda02f1U : 0x05646d15U);
}

TEST(Exp, OfDoubleIsTheNearestDouble) { EXPECT_EQ(exp(1.5), 4.4816890703380645); }

TEST(Sigmoid, SaturatesWithoutNaN) {
  EXPECT_EQ(sigmoid(0.0F), 0.5F);
  EXPECT_EQ(sigmoid(200.0F), 1.0F);
  EXPECT_EQ(sigmoid(-200.0F), 0.0F);
  EXPECT_EQ(sigmoid(-kInfinity), 0.0F);
  EXPECT_NEAR(sigmoid(1.0), 0.7310585786300049, 1e-15);
}

TEST(Exp, OfAVectorHasTheBitsOfItsLanes) {
  constexpr auto kLanes = static_cast<std::size_t>(Vec<float>::kLanes);
  std::vector<float> values{0.0F,      -0.0F,      89.0F,  88.73F,
                            -104.0F,   -103.9F,    1e30F,  -1e30F,
                            kInfinity, -kInfinity, 1e-40F, std::numeric_limits<float>::quiet_NaN()};
  const auto keep = [&](float x) { values.push_back(x); };
  sweep(1e-6F, 100.0F, keep);
  sweep(-1e-6F, -110.0F, keep);
  while (values.size() % kLanes != 0) values.push_back(1.0F);
  std::int64_t different = 0;
  for (std::size_t i = 0; i < values.size(); i += kLanes) {
    float lanes[kLanes];
    exp(Vec<float>::load(values.data() + i)).store(lanes);
    for (std::size_t l = 0; l < kLanes; ++l) {
      const float one = exp(values[i + l]);
      const bool same = std::bit_cast<std::uint32_t>(one) == std::bit_cast<std::uint32_t>(lanes[l]);
      different += !same && !(std::isnan(one) && std::isnan(lanes[l]));
    }
  }
  EXPECT_EQ(different, 0);
  EXPECT_GT(values.size(), 100'000U);
}

}  // namespace
}  // namespace moegrad::kernels::exp_test
