// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/random.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <set>
#include <thread>
#include <vector>

#include "tests/testing.h"

namespace moegrad::random_test {
namespace {

using Words = std::array<std::uint32_t, 4>;

// kat_vectors of Random123 1.09.
TEST(Philox, MatchesTheKnownAnswers) {
  constexpr auto kOnes = 0xffffffffU;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, IsAFunctionOfSeedPurposeAndIndex) {
  const Random random(1, "weight");
  EXPECT_EQ(random.uniform(7), Random(1, "weight").uniform(7));
  std::set<double> values;
  for (const double value :
       {random.uniform(0), random.uniform(1), random.uniform(std::uint64_t{1} << 32),
        Random(2, "weight").uniform(0), Random(std::uint64_t{1} << 32 | 1, "weight").uniform(0),
        Random(1, "weighu").uniform(0), Random(1, "").uniform(0)}) {
    EXPECT_TRUE(values.insert(value).second);
  }
}

TEST(Random, UniformIsInTheUnitInterval) {
  const Random random(3, "uniform");
  double sum = 0, square = 0;
  constexpr int kCount = 100'000;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    const double u = random.uniform(i);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
    square += u * u;
  }
  EXPECT_NEAR(sum / kCount, 0.5, 0.005);
  EXPECT_NEAR(square / kCount, 1.0 / 3, 0.005);
}

TEST(Random, NormalHasTheMomentsOfANormal) {
  const Random random(3, "normal");
  std::array<double, 5> moments{};
  constexpr int kCount = 200'000;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    const double value = random.normal(i);
    ASSERT_TRUE(std::isfinite(value));
    double power = 1;
    for (auto& moment : moments) moment += (power *= value) / kCount;
  }
  EXPECT_NEAR(moments[0], 0, 0.01);
  EXPECT_NEAR(moments[1], 1, 0.02);
  EXPECT_NEAR(moments[2], 0, 0.05);
  EXPECT_NEAR(moments[3], 3, 0.1);
}

TEST(Random, IntegersCoverTheirRangeEvenly) {
  const Random random(3, "integer");
  std::array<int, 7> counts{};
  constexpr int kCount = 70'000;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    const auto value = random.integer(i, 7);
    ASSERT_GE(value, 0);
    ASSERT_LT(value, 7);
    ++counts[static_cast<std::size_t>(value)];
  }
  for (const int count : counts) EXPECT_NEAR(count, 10'000, 500);
  EXPECT_EQ(random.integer(5, 1), 0);
  EXPECT_LT(random.integer(5, INT64_MAX), INT64_MAX);
}

TEST(Random, NeedsABound) {
  EXPECT_EQ(test::message_of<ValueError>([] { Random(9, "integers").integer(5, 0); }),
            "Random::integer: bound must be at least 1, got 0");
}

TEST(Random, IsTheSameFromEveryThread) {
  const Random random(9, "threads");
  std::vector<double> values(1000);
  {
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (std::size_t i = t; i < values.size(); i += 4) values[i] = random.normal(i);
      });
    }
  }
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], random.normal(i));
}

}  // namespace
}  // namespace moegrad::random_test
