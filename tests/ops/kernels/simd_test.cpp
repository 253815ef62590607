// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/simd.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "ops/kernels/transpose_8x8.h"

namespace moegrad::kernels::simd_test {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;

template <class T>
std::vector<T> lanes_of(const Vec<T>& vec) {
  std::vector<T> lanes(Vec<T>::kLanes);
  vec.store(lanes.data());
  return lanes;
}

// first, first + 1, ...
template <class T>
Vec<T> counting_from(T first) {
  std::array<T, Vec<T>::kLanes> lanes;
  for (auto& lane : lanes) lane = first++;
  return Vec<T>::load(lanes.data());
}

template <class T>
class VecOf : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(VecOf, Types);

TYPED_TEST(VecOf, ComputesEachLane) {
  using T = TypeParam;
  const auto a = counting_from<T>(1), b = counting_from<T>(10);
  const auto c = Vec<T>::broadcast(T{0.5});
  for (std::size_t i = 0; i < Vec<T>::kLanes; ++i) {
    const auto x = static_cast<T>(i + 1), y = static_cast<T>(i + 10);
    EXPECT_EQ(lanes_of(Vec<T>::zero())[i], T{0});
    EXPECT_EQ(lanes_of(c)[i], T{0.5});
    EXPECT_EQ(lanes_of(a + b)[i], x + y);
    EXPECT_EQ(lanes_of(a - b)[i], x - y);
    EXPECT_EQ(lanes_of(a * b)[i], x * y);
    EXPECT_EQ(lanes_of(fma(a, b, c))[i], x * y + T{0.5});
    auto sum = c;
    accumulate(sum, a, b);
    EXPECT_EQ(lanes_of(sum)[i], x * y + T{0.5});
    alignas(32) std::array<T, Vec<T>::kLanes> streamed{};
    a.stream(streamed.data());
    finish_streams();
    EXPECT_EQ(streamed[i], x);
  }
}

TYPED_TEST(VecOf, RoundsAMultiplyAddAsItSays) {
  using T = TypeParam;
  const T x = T{1} + std::numeric_limits<T>::epsilon();
  const T square = x * x, once = std::fma(x, x, -square);
  ASSERT_NE(once, T{0});
  const auto v = Vec<T>::broadcast(x), minus_square = Vec<T>::broadcast(-square);
  auto sum = minus_square;
  accumulate(sum, v, v);
  const std::vector<T> expected(Vec<T>::kLanes, kFusesMultiplyAdd ? once : T{0});
  EXPECT_EQ(lanes_of(fma(v, v, minus_square)), expected);
  EXPECT_EQ(lanes_of(sum), expected);
}

TYPED_TEST(VecOf, LargerIsTheSecondIfEitherIsNaN) {
  using T = TypeParam;
  constexpr T kNaN = std::numeric_limits<T>::quiet_NaN();
  const auto of = [](T a, T b) {
    return lanes_of(larger(Vec<T>::broadcast(a), Vec<T>::broadcast(b)));
  };
  for (std::size_t i = 0; i < Vec<T>::kLanes; ++i) {
    EXPECT_EQ(of(2, 1)[i], T{2});
    EXPECT_EQ(of(1, 2)[i], T{2});
    EXPECT_EQ(of(kNaN, 1)[i], T{1});
    EXPECT_TRUE(std::isnan(of(1, kNaN)[i]));
    EXPECT_TRUE(std::signbit(of(T{0}, -T{0})[i]));
    EXPECT_FALSE(std::signbit(of(-T{0}, T{0})[i]));
  }
}

TEST(Vec, SmallerIsTheSecondIfEitherIsNaN) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  const auto of = [](float a, float b) {
    return lanes_of(smaller(Vec<float>::broadcast(a), Vec<float>::broadcast(b)));
  };
  for (std::size_t i = 0; i < Vec<float>::kLanes; ++i) {
    EXPECT_EQ(of(2, 1)[i], 1);
    EXPECT_EQ(of(1, 2)[i], 1);
    EXPECT_EQ(of(kNaN, 1)[i], 1);
    EXPECT_TRUE(std::isnan(of(1, kNaN)[i]));
    EXPECT_TRUE(std::signbit(of(0.0F, -0.0F)[i]));
  }
}

TEST(Vec, WeavesTheHalvesOfTwo) {
  const auto a = counting_from(0.0F), b = counting_from(10.0F);
  EXPECT_THAT(lanes_of(low(a, b)), ElementsAre(0, 10, 1, 11, 4, 14, 5, 15));
  EXPECT_THAT(lanes_of(high(a, b)), ElementsAre(2, 12, 3, 13, 6, 16, 7, 17));
  EXPECT_THAT(lanes_of(low_pairs(a, b)), ElementsAre(0, 1, 10, 11, 4, 5, 14, 15));
  EXPECT_THAT(lanes_of(high_pairs(a, b)), ElementsAre(2, 3, 12, 13, 6, 7, 16, 17));
}

TEST(Vec, LoadsAndStoresHalvesAndPairs) {
  const std::array<float, 9> numbers = {0, 1, 2, 3, 4, 5, 6, 7, 8};
  const auto vec = Vec<float>::load_halves(numbers.data() + 5, numbers.data() + 1);
  EXPECT_THAT(lanes_of(vec), ElementsAre(5, 6, 7, 8, 1, 2, 3, 4));
  std::array<float, 5> to{};
  vec.store_half<0>(to.data());
  EXPECT_THAT(to, ElementsAre(5, 6, 7, 8, 0));
  vec.store_half<1>(to.data());
  EXPECT_THAT(to, ElementsAre(1, 2, 3, 4, 0));
  vec.store_pair<0>(to.data());
  EXPECT_THAT(to, ElementsAre(5, 6, 3, 4, 0));
  vec.store_pair<1>(to.data());
  EXPECT_THAT(to, ElementsAre(7, 8, 3, 4, 0));
  vec.store_pair<2>(to.data());
  EXPECT_THAT(to, ElementsAre(1, 2, 3, 4, 0));
  vec.store_pair<3>(to.data() + 1);
  EXPECT_THAT(to, ElementsAre(1, 3, 4, 4, 0));
}

TEST(Vec, HasPowersOfTwo) {
  for (int n = -126; n <= 127; ++n) {
    const auto x = Vec<float>::broadcast(12582912.0F + static_cast<float>(n));
    EXPECT_EQ(lanes_of(power_of_two(x)), std::vector<float>(8, std::ldexp(1.0F, n))) << n;
  }
}

TEST(Transpose8x8, WritesColumnsAsRows) {
  std::array<std::array<float, 9>, 8> rows;
  std::array<std::array<double, 9>, 8> rows_of_doubles;
  for (std::size_t r = 0; r < 8; ++r) {
    for (std::size_t c = 0; c < 9; ++c) {
      rows[r][c] = static_cast<float>(10 * r + c);
      rows_of_doubles[r][c] = static_cast<double>(10 * r + c);
    }
  }
  std::vector<float> columns(8 * 10, -1.0F);
  transpose_8x8([&](int r) { return rows[static_cast<std::size_t>(r)].data(); }, columns.data(),
                10);
  std::vector<double> columns_of_doubles(8 * 10, -1.0);
  transpose_8x8([&](int r) { return rows_of_doubles[static_cast<std::size_t>(r)].data(); },
                columns_of_doubles.data(), 10);
  std::vector<float> expected(8 * 10, -1.0F);
  for (std::size_t c = 0; c < 8; ++c) {
    for (std::size_t r = 0; r < 8; ++r) expected[c * 10 + r] = static_cast<float>(10 * r + c);
  }
  EXPECT_EQ(columns, expected);
  EXPECT_THAT(columns_of_doubles, ElementsAreArray(expected));
}

}  // namespace
}  // namespace moegrad::kernels::simd_test
