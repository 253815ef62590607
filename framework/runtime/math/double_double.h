// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace moegrad::math {

/// The sum high + low, where high is that sum rounded: a number of 106 bits. Each operation below
/// has a relative error of at most 2^-102. No operand may be so large or small that a product of
/// two of them, or its error, leaves the range of double.
///
/// Method: M. Joldes, J.-M. Muller, V. Popescu, "Tight and rigorous error bounds for basic building
/// blocks of double-word arithmetic", 2017. See Note [Elementary functions].
struct DoubleDouble {
  double high = 0.0;
  double low = 0.0;
};

/// The exact sum; |a| >= |b| or a = 0.
constexpr DoubleDouble fast_two_sum(double a, double b) {
  const double sum = a + b;
  return {sum, b - (sum - a)};
}

/// The exact sum.
constexpr DoubleDouble two_sum(double a, double b) {
  const double sum = a + b;
  const double of_b = sum - a;
  return {sum, (a - (sum - of_b)) + (b - of_b)};
}

/// The upper 26 bits of x, and the rest.
constexpr DoubleDouble split(double x) {
  const double scaled = 0x8000001p0 * x;
  const double high = scaled - (scaled - x);
  return {high, x - high};
}

/// The exact product.
constexpr DoubleDouble two_product(double a, double b) {
  const double product = a * b;
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  if (!std::is_constant_evaluated()) return {product, __builtin_fma(a, b, -product)};
#endif
  const auto x = split(a), y = split(b);
  return {product, ((x.high * y.high - product) + x.high * y.low + x.low * y.high) + x.low * y.low};
}

constexpr DoubleDouble operator-(const DoubleDouble& a) { return {-a.high, -a.low}; }

constexpr DoubleDouble operator+(const DoubleDouble& a, double b) {
  const auto sum = two_sum(a.high, b);
  return fast_two_sum(sum.high, sum.low + a.low);
}

constexpr DoubleDouble operator+(const DoubleDouble& a, const DoubleDouble& b) {
  const auto high = two_sum(a.high, b.high), low = two_sum(a.low, b.low);
  const auto sum = fast_two_sum(high.high, high.low + low.high);
  return fast_two_sum(sum.high, sum.low + low.low);
}

constexpr DoubleDouble operator*(const DoubleDouble& a, double b) {
  const auto product = two_product(a.high, b);
  return fast_two_sum(product.high, product.low + a.low * b);
}

constexpr DoubleDouble operator*(const DoubleDouble& a, const DoubleDouble& b) {
  const auto product = two_product(a.high, b.high);
  return fast_two_sum(product.high, product.low + (a.high * b.low + a.low * b.high));
}

constexpr DoubleDouble operator/(const DoubleDouble& a, const DoubleDouble& b) {
  const double quotient = a.high / b.high;
  const auto rest = a + -(b * quotient);
  return fast_two_sum(quotient, rest.high / b.high);
}

constexpr DoubleDouble operator/(const DoubleDouble& a, double b) { return a / DoubleDouble{b}; }

/// sum of coefficients[i] x^i over i in [first, N), in double.
template <std::size_t N>
constexpr double polynomial(const std::array<DoubleDouble, N>& coefficients, double x,
                            std::size_t first, std::size_t end = N) {
  double sum = 0.0;
  for (auto i = end; i-- > first;) sum = sum * x + coefficients[i].high;
  return sum;
}

/// sum of coefficients[i] x^i; the terms from `accurate` on are so small that double will do.
template <std::size_t N>
constexpr DoubleDouble polynomial(const std::array<DoubleDouble, N>& coefficients,
                                  const DoubleDouble& x, std::size_t accurate = N) {
  DoubleDouble sum = {polynomial(coefficients, x.high, accurate)};
  for (auto i = accurate; i-- > 0;) sum = coefficients[i] + sum * x;
  return sum;
}

/// f(0), f(1), ... f(N - 1)
template <std::size_t N, class F>
constexpr auto table(const F& f) {
  std::array<decltype(f(0)), N> values{};
  for (std::size_t i = 0; i < N; ++i) values[i] = f(static_cast<int>(i));
  return values;
}

/// 2^exponent of a normal number.
constexpr double power_of_two(std::int64_t exponent) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52U);
}

/// x rounded to an integer, |x| < 2^51.
constexpr double nearest_integer(double x) { return (x + 0x1.8p52) - 0x1.8p52; }

/// high + low rounded to double, but to the odd neighbour where low is not 0: it can be added or
/// rounded to two bits fewer, and the result is as from the exact value.
constexpr double round_to_odd(const DoubleDouble& x) {
  const auto bits = std::bit_cast<std::uint64_t>(x.high);
  if (x.low == 0.0 || (bits & 1U) != 0) return x.high;
  return std::bit_cast<double>((x.low > 0.0) == (x.high > 0.0) ? bits + 1 : bits - 1);
}

template <class T>
inline constexpr T kNaN = std::numeric_limits<T>::quiet_NaN();
template <class T>
inline constexpr T kInfinity = std::numeric_limits<T>::infinity();

/// Whether all numbers within `error` of the sum high + low round to one double.
constexpr bool rounds_surely(const DoubleDouble& sum, double error) {
  return sum.high + (sum.low - error) == sum.high + (sum.low + error);
}

/// The same of floats: whether all within `error` of x round to one float.
inline bool rounds_surely(double x, double error) {
  return static_cast<float>(x - error) == static_cast<float>(x + error);
}

/// value * 2^exponent
struct Scaled {
  DoubleDouble value;
  std::int64_t exponent = 0;
};

/// value * 2^exponent rounded once, also to a denormal number. value is not 0.
double round_to_double(const Scaled& x);
float round_to_float(const Scaled& x);

}  // namespace moegrad::math
