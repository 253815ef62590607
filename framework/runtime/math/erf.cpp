// SPDX-License-Identifier: Apache-2.0
// erf and erfc. Below 1/2, erf x is its Taylor series; from there to 6, erfc x is a Taylor series
// around the middle of an interval of length 1/8; above 6 it is a continued fraction:
//
//     erfc x = e^(-x^2) / sqrt(pi) / (x + (1/2) / (x + (2/2) / (x + (3/2) / (x + ...
//
// erf = 1 - erfc serves where the other is given. See Note [Elementary functions].
//
// Reference: M. Abramowitz, I. Stegun, "Handbook of Mathematical Functions", 1964, 7.1.
#include "framework/runtime/math/elementary.h"
#include "framework/runtime/math/exp_log.h"

namespace moegrad::math {
namespace {

constexpr DoubleDouble kTwoOverSqrtPi = {0x1.20dd750429b6dp0, 0x1.1ae3a914fed80p-56};
constexpr double kFirst = 0.5, kLast = 6.0, kLength = 0.125;

// 2 / sqrt(pi) (-1)^n / (n! (2n + 1)), of erf(x) / x in powers of x^2.
constexpr auto kErfSeries = table<22>([](int n) {
  DoubleDouble factor = kTwoOverSqrtPi * (n % 2 == 0 ? 1.0 : -1.0);
  for (int i = 2; i <= n; ++i) factor = factor / i;
  return factor / (2.0 * n + 1.0);
});

// Coefficients of erfc(x + t) in powers of t, from erfc(x) and slope = -2 / sqrt(pi) e^(-x^2). With
// y' = -2 (x + t) y for the derivative y, those of y follow from each other.
template <std::size_t N>
constexpr std::array<DoubleDouble, N> erfc_around(double x, const DoubleDouble& value,
                                                  const DoubleDouble& slope) {
  std::array<DoubleDouble, N> coefficients = {value};
  DoubleDouble before, now = slope;
  for (std::size_t n = 1; n < N; ++n) {
    const auto count = static_cast<double>(n);
    coefficients[n] = now / count;
    const auto next = (now * x + before) * -2.0 / count;
    before = now;
    now = next;
  }
  return coefficients;
}

using Interval = std::array<DoubleDouble, 26>;

// From the last interval to the first: the terms of a step to the left are all positive.
constexpr auto kIntervals = [] {
  std::array<Interval, static_cast<std::size_t>((kLast - kFirst) / kLength)> intervals{};
  DoubleDouble value = {0x1.a6d7d18831888p-55, -0x1.69240b604f20ep-111};  // erfc(5.9375)
  DoubleDouble slope = {-0x1.3e296303b2297p-51, -0x1.68cf6480a3817p-105};
  double x = kLast - kLength / 2.0;
  for (auto i = intervals.size(); i-- > 0; x -= kLength) {
    const auto coefficients = erfc_around<36>(x, value, slope);
    for (std::size_t n = 0; n < std::tuple_size_v<Interval>; ++n) intervals[i][n] = coefficients[n];
    value = slope = {};
    for (auto n = coefficients.size(); n-- > 0;) {
      if (n > 0) slope = slope * -kLength + coefficients[n] * static_cast<double>(n);
      value = value * -kLength + coefficients[n];
    }
  }
  return intervals;
}();

struct Place {
  const Interval& interval;
  double t;  // x less the middle of the interval
};

Place place_of(double x) {
  const auto i = static_cast<std::size_t>((x - kFirst) / kLength);
  return {kIntervals[i], x - (kFirst + kLength * (static_cast<double>(i) + 0.5))};
}

// For x below 1/2 in magnitude, and not so small that its square is too small.
DoubleDouble erf_series(double x) { return polynomial(kErfSeries, two_product(x, x), 10) * x; }

// For x from 1/2 on; less than 2^-1075 above 27.3.
Scaled erfc_accurate(double x) {
  if (x < kLast) {
    const auto [interval, t] = place_of(x);
    return {.value = polynomial(interval, DoubleDouble{t}, 14)};
  }
  DoubleDouble fraction = {x};
  for (int n = 40; n > 0; --n) fraction = DoubleDouble{n / 2.0} / fraction + x;
  const auto power = exp_accurate(-two_product(x, x));
  return {power.value * (kTwoOverSqrtPi * 0.5) / fraction, power.exponent};
}

DoubleDouble erf_accurate(double x) {
  if (x < kFirst) return erf_series(x);
  return x < kLast ? -erfc_accurate(x).value + 1.0 : DoubleDouble{1.0};
}

}  // namespace

float erf(float x) {
  const float size = std::abs(x);
  if (!(size < 4.0F)) return x != x ? kNaN<float> : std::copysign(1.0F, x);
  double value = 0.0;
  if (size < kFirst) {
    value = size * polynomial(kErfSeries, double{size} * size, 0, 12);
  } else {
    const auto [interval, t] = place_of(size);
    value = 1.0 - polynomial(interval, t, 0, 12);
  }
  const bool sure = rounds_surely(value, 0x1p-44 * value);
  return std::copysign(
      sure ? static_cast<float>(value) : round_to_float({.value = erf_accurate(size)}), x);
}

double erf(double x) {
  const double size = std::abs(x);
  if (!(size < kLast)) return x != x ? kNaN<double> : std::copysign(1.0, x);
  if (x == 0.0) return x;
  // The square of a small number is nothing beside 1, but the number may be denormal.
  if (size < 0x1p-200) {
    return std::copysign(round_to_double({kTwoOverSqrtPi * (size * 0x1p500), -500}), x);
  }
  return std::copysign(erf_accurate(size).high, x);
}

double erfc(double x) {
  if (x != x) return kNaN<double>;
  if (x > 28.0) return 0.0;
  if (x < -kLast) return 2.0;
  if (std::abs(x) < 0x1p-56) return 1.0;
  if (x >= kFirst) return round_to_double(erfc_accurate(x));
  return (-(x < 0.0 ? -erf_accurate(-x) : erf_accurate(x)) + 1.0).high;
}

}  // namespace moegrad::math
