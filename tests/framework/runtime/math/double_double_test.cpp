// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/math/double_double.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace moegrad::double_double_test {
namespace {

using math::DoubleDouble;

// The sum of numbers that may cancel: each pass moves what is rounded off to the left, exactly.
double exact_sum(std::vector<double> terms) {
  for (int pass = 0; pass < 12; ++pass) {
    for (std::size_t i = 1; i < terms.size(); ++i) {
      const auto sum = math::two_sum(terms[i - 1], terms[i]);
      terms[i - 1] = sum.low;
      terms[i] = sum.high;
    }
  }
  double sum = 0.0;
  for (const double term : terms) sum += term;
  return sum;
}

void append_product(std::vector<double>& terms, double a, double b) {
  const auto product = math::two_product(a, b);
  terms.push_back(product.high);
  terms.push_back(product.low);
}

// How far `result` is from a + b and from a * b, in parts of it.
double error_of_sum(const DoubleDouble& result, const DoubleDouble& a, const DoubleDouble& b) {
  const double error = exact_sum({-result.high, a.high, b.high, -result.low, a.low, b.low});
  return error == 0.0 ? 0.0 : std::abs(error / result.high);
}

double error_of_product(const DoubleDouble& result, const DoubleDouble& a, const DoubleDouble& b) {
  std::vector<double> terms = {-result.high, -result.low};
  for (const double x : {a.high, a.low}) {
    for (const double y : {b.high, b.low}) append_product(terms, x, y);
  }
  return std::abs(exact_sum(terms) / result.high);
}

TEST(DoubleDouble, HasTheSmallErrorsThatItPromises) {
  std::mt19937_64 random(1);
  const auto unit = [&] { return static_cast<double>(random() >> 11U) * 0x1p-53 - 0.5; };
  const auto number = [&] {
    const double high = std::ldexp(unit(), static_cast<int>(random() % 8));
    return math::fast_two_sum(high, high * 0x1p-53 * unit());
  };
  double sum = 0.0, canceling = 0.0, with_double = 0.0, product = 0.0, by_double = 0.0,
         quotient = 0.0;
  for (int i = 0; i < 20'000; ++i) {
    const auto a = number(), b = number();
    sum = std::max(sum, error_of_sum(a + b, a, b));
    const DoubleDouble close = {-a.high, a.high * 0x1p-53 * unit()};
    canceling = std::max(canceling, error_of_sum(a + close, a, close));
    with_double = std::max(with_double, error_of_sum(a + b.high, a, {b.high}));
    product = std::max(product, error_of_product(a * b, a, b));
    by_double = std::max(by_double, error_of_product(a * b.high, a, {b.high}));
    const auto by = a / b;
    const auto back = error_of_product(a, by, b);  // (a / b) b is a
    quotient = std::max(quotient, back);
  }
  for (const double error : {sum, canceling, with_double, product, by_double, quotient}) {
    EXPECT_LT(error, 0x1p-102);
  }
  EXPECT_GT(product, 0x1p-107);  // there is something to be seen
}

TEST(DoubleDouble, IsRoundedToTheOddNeighbour) {
  constexpr double kUnit = 0x1p-52;
  for (const double sign : {1.0, -1.0}) {
    const auto rounded = [&](double high, double low) {
      return sign * math::round_to_odd({sign * high, sign * low});
    };
    EXPECT_EQ(rounded(1.0 + 2 * kUnit, 0.0), 1.0 + 2 * kUnit);
    EXPECT_EQ(rounded(1.0 + 2 * kUnit, 0x1p-90), 1.0 + 3 * kUnit);
    EXPECT_EQ(rounded(1.0 + 2 * kUnit, -0x1p-90), 1.0 + kUnit);
    EXPECT_EQ(rounded(1.0 + kUnit, 0x1p-90), 1.0 + kUnit);
    EXPECT_EQ(rounded(1.0 + kUnit, -0x1p-90), 1.0 + kUnit);
  }
}

// Halfway between two results, and a little beside: what is far below the last place decides.
TEST(Scaled, IsRoundedOnce) {
  for (const double sign : {1.0, -1.0}) {
    const auto to_float = [&](double high, double low, std::int64_t exponent) {
      return static_cast<float>(sign) * math::round_to_float({{sign * high, sign * low}, exponent});
    };
    const auto to_double = [&](double high, double low, std::int64_t exponent) {
      return sign * math::round_to_double({{sign * high, sign * low}, exponent});
    };
    EXPECT_EQ(to_float(0x1.000001p0, 0.0, 3), 0x1p3F);
    EXPECT_EQ(to_float(0x1.000001p0, 0x1p-100, 3), 0x1.000002p3F);
    EXPECT_EQ(to_float(0x1.000003p0, -0x1p-100, 3), 0x1.000002p3F);
    EXPECT_EQ(to_float(1.5, 0.0, -149), 0x2p-149F);
    EXPECT_EQ(to_float(1.5, -0x1p-100, -149), 0x1p-149F);
    EXPECT_EQ(to_float(1.0, 0.0, -150), 0.0F);
    EXPECT_EQ(to_float(1.0, 0x1p-100, -150), 0x1p-149F);
    EXPECT_EQ(to_float(1.0, 0.0, 128), std::numeric_limits<float>::infinity());
    EXPECT_EQ(to_double(1.5, 0x1p-53, 7), 192.0);
    EXPECT_EQ(to_double(1.5, 0.0, -1074), 0x2p-1074);
    EXPECT_EQ(to_double(1.5, -0x1p-100, -1074), 0x1p-1074);
    EXPECT_EQ(to_double(1.0, 0.0, -1075), 0.0);
    EXPECT_EQ(to_double(1.0, 0x1p-100, -1075), 0x1p-1074);
    EXPECT_EQ(to_double(1.0, -0x1p-100, -1075), 0.0);
    EXPECT_EQ(to_double(0x1.0000000000001p0, -0x1p-100, -1023), 0x1p-1023);
    EXPECT_EQ(to_double(0x1.0000000000001p0, 0x1p-100, -1023), 0x1.0000000000002p-1023);
    EXPECT_EQ(to_double(1.0, 0.0, -1200), 0.0);
    EXPECT_EQ(to_double(1.0, 0.0, 1024), std::numeric_limits<double>::infinity());
  }
}

}  // namespace
}  // namespace moegrad::double_double_test
