// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "framework/runtime/math/elementary.h"
#include "tests/testing.h"

namespace moegrad::power_test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr long double kUnsure = 4.0L * std::numeric_limits<long double>::epsilon();

int samples() { return test::full_suite() ? 20'000'000 : test::kSanitized ? 20'000 : 200'000; }

template <class T>
bool same(T a, T b) {
  return a == b ? std::signbit(a) == std::signbit(b) : std::isnan(a) && std::isnan(b);
}

// Whether `got` is x^y rounded, as far as long double can tell.
template <class T>
bool is_rounded(T got, T x, T y) {
  const long double expected = std::pow(static_cast<long double>(x), static_cast<long double>(y));
  return same(got, static_cast<T>(expected)) ||
         same(got, static_cast<T>(expected * (1 - kUnsure))) ||
         same(got, static_cast<T>(expected * (1 + kUnsure)));
}

// Pairs of any bits, most of which overflow; pairs whose power has any exponent; and bases near 1.
template <class T>
void expect_rounded() {
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  std::mt19937_64 random(2);
  std::int64_t wrong = 0;
  for (int i = 0; i < samples(); ++i) {
    auto x = std::bit_cast<T>(static_cast<Bits>(random()));
    auto y = std::bit_cast<T>(static_cast<Bits>(random()));
    const auto unit = static_cast<T>(static_cast<double>(random() >> 11U) * 0x1p-53);
    if (i % 4 == 1) y = (unit - T{0.5}) * T{2200} / std::log2(std::abs(x));
    if (i % 4 == 2) x = T{1} + std::ldexp(unit - T{0.5}, -static_cast<int>(random() % 30));
    if (i % 4 == 3) {
      x = unit * T{8};
      y = static_cast<T>(random() % 64) / T{4} - T{8};
    }
    const T got = math::pow(x, y);
    if (is_rounded(got, x, y)) continue;
    if (wrong++ < 5) ADD_FAILURE() << std::hexfloat << x << " ^ " << y << " is " << got;
  }
  EXPECT_EQ(wrong, 0);
}

TEST(Pow, OfFloatIsTheNearestFloat) { expect_rounded<float>(); }

TEST(Pow, OfDoubleIsTheNearestDouble) { expect_rounded<double>(); }

// r^n of `digits` + 1 bits is halfway between two numbers. It is (r^(2^k))^(n / 2^k), too, and any
// power of two may be a factor.
template <class T>
void expect_ties_to_even() {
  constexpr int kDigits = std::numeric_limits<T>::digits;
  const auto limit = [](int bits) { return std::ldexp(1.0, bits); };
  std::mt19937_64 random(3);
  std::int64_t ties = 0;
  for (int n = 1; n <= 34; ++n) {
    const double least = std::pow(limit(kDigits), 1.0 / n),
                 most = std::pow(limit(kDigits + 1), 1.0 / n);
    const double step = std::max(1.0, (most - least) / 20'000.0);
    for (double root = std::floor(least); root <= most; root += step) {
      const auto r = static_cast<std::uint64_t>(root) | 1U;
      std::uint64_t power = 1;
      for (int i = 0; i < n && power < 1ULL << 58U; ++i) power *= r;
      if (power >> (kDigits + 1) != 0 || power >> kDigits == 0) continue;
      auto x = static_cast<T>(r);
      auto y = static_cast<T>(n);
      for (int k = 0; static_cast<double>(r) < limit(kDigits >> k); ++k, x *= x, y /= T{2}) {
        const int e = static_cast<int>(random() % 9) - 4;
        const T got = math::pow(std::ldexp(x, e << k), y);
        ASSERT_EQ(got, std::ldexp(static_cast<T>(power), e * n)) << r << ' ' << n << ' ' << k;
        ++ties;
      }
    }
  }
  EXPECT_GT(ties, kDigits == 24 ? 1'500 : 20'000);
}

TEST(Pow, RoundsTiesOfFloatToEven) { expect_ties_to_even<float>(); }

TEST(Pow, RoundsTiesOfDoubleToEven) { expect_ties_to_even<double>(); }

// In comments: the exact value, in units of the least number.
TEST(Pow, RoundsTiesOfDenormalsToEven) {
  EXPECT_EQ(math::pow(0x1p-537, 2.0), 0x1p-1074);
  EXPECT_EQ(math::pow(2.0, -1075.0), 0.0);           // 1/2
  EXPECT_EQ(math::pow(0x1.8p-537, 2.0), 0x2p-1074);  // 2.25
  EXPECT_EQ(math::pow(0x3p-215, 5.0), 0x7ap-1074);   // 121.5
  EXPECT_EQ(math::pow(0x5p-215, 5.0), 0x61ap-1074);  // 1562.5
  EXPECT_EQ(math::pow(0x1p-25F, 6.0F), 0.0F);        // 1/2
  EXPECT_EQ(math::pow(0x3p-75F, 2.0F), 0x4p-149F);   // 4.5
  EXPECT_EQ(math::pow(0x3p-50F, 3.0F), 0xep-149F);   // 13.5
}

// The odd factor has a root, the power of two has none: x = m 2^e with an odd e.
TEST(Pow, HasNoExactRootOfAnOddPowerOfTwo) {
  EXPECT_EQ(math::pow(2.0, 0.5), 0x1.6a09e667f3bcdp0);
  EXPECT_EQ(math::pow(18.0, 0.5), 0x1.0f876ccdf6cd9p2);
  EXPECT_EQ(math::pow(0.125, 0.5), 0x1.6a09e667f3bcdp-2);
  EXPECT_EQ(math::pow(2.0, -0.5), 0x1.6a09e667f3bcdp-1);
  EXPECT_EQ(math::pow(162.0, 0.25), 0x1.c8a7d0f4a92a0p1);
  EXPECT_EQ(math::pow(64.0, 0.25), 0x1.6a09e667f3bcdp1);  // the second root
}

// The exact value differs from halfway between 1 and a neighbour by a part of 2^-55 of that.
TEST(Pow, IsNotTakenInByNeighboursOfOne) {
  EXPECT_EQ(math::pow(1.0 - 0x1p-53, 0.5), 1.0 - 0x1p-53);
  EXPECT_EQ(math::pow(1.0 + 0x1p-52, 0.5), 1.0);
  EXPECT_EQ(math::pow(1.0 + 0x1p-52, 2.5), 1.0 + 3 * 0x1p-52);
  EXPECT_EQ(math::pow(1.0F - 0x1p-24F, 0.5F), 1.0F - 0x1p-24F);
  EXPECT_EQ(math::pow(1.0F + 0x1p-23F, 0.5F), 1.0F);
}

struct Special {
  double x, y, expected;
};

// Annex F.10.4.4 of the C standard.
constexpr Special kSpecials[] = {
    {0.0, -3.0, kInf},   {-0.0, -3.0, -kInf},   {0.0, -2.0, kInf},    {-0.0, -2.0, kInf},
    {0.0, -2.5, kInf},   {-0.0, -2.5, kInf},    {0.0, -kInf, kInf},   {-0.0, -kInf, kInf},
    {0.0, 3.0, 0.0},     {-0.0, 3.0, -0.0},     {0.0, 2.0, 0.0},      {-0.0, 2.0, 0.0},
    {-0.0, 2.5, 0.0},    {-0.0, kInf, 0.0},     {-1.0, kInf, 1.0},    {-1.0, -kInf, 1.0},
    {1.0, kNaN, 1.0},    {1.0, -kInf, 1.0},     {1.0, 7.5, 1.0},      {kNaN, 0.0, 1.0},
    {kNaN, -0.0, 1.0},   {-7.0, 0.0, 1.0},      {kInf, 0.0, 1.0},     {-2.0, 0.5, kNaN},
    {-2.0, 3.0, -8.0},   {-2.0, 4.0, 16.0},     {-2.0, -3.0, -0.125}, {0.5, -kInf, kInf},
    {-0.5, -kInf, kInf}, {1.5, -kInf, 0.0},     {-1.5, -kInf, 0.0},   {0.5, kInf, 0.0},
    {-0.5, kInf, 0.0},   {1.5, kInf, kInf},     {-1.5, kInf, kInf},   {-kInf, -3.0, -0.0},
    {-kInf, -2.0, 0.0},  {-kInf, -2.5, 0.0},    {-kInf, 3.0, -kInf},  {-kInf, 2.0, kInf},
    {-kInf, 2.5, kInf},  {kInf, -1.0, 0.0},     {kInf, 0.5, kInf},    {kNaN, 1.0, kNaN},
    {2.0, kNaN, kNaN},   {-1.0, 3.0, -1.0},     {-1.0, 4.0, 1.0},     {-1.0, 0.5, kNaN},
    {2.0, 2000.0, kInf}, {-2.0, 2001.0, -kInf}, {2.0, -2000.0, 0.0},  {-2.0, -2001.0, -0.0},
};

TEST(Pow, OfSpecialValuesIsThatOfTheStandard) {
  for (const auto& [x, y, expected] : kSpecials) {
    const double got = math::pow(x, y);
    const float of_floats = math::pow(static_cast<float>(x), static_cast<float>(y));
    EXPECT_TRUE(same(got, expected)) << x << " ^ " << y << " is " << got;
    EXPECT_TRUE(same(of_floats, static_cast<float>(expected))) << x << " ^ " << y;
  }
  EXPECT_TRUE(same(math::pow(-2.0, -1e300), 0.0));  // an even number
  EXPECT_TRUE(same(math::pow(-3.0, 0x1p53 - 1.0), -kInf));
  EXPECT_TRUE(same(math::pow(-3.0, 0x1p53), kInf));
  EXPECT_EQ(math::pow(3.0, 1e-300), 1.0);
}

}  // namespace
}  // namespace moegrad::power_test
