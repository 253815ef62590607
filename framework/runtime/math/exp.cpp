// SPDX-License-Identifier: Apache-2.0
// exp and tanh. With x = k ln 2 / 128 + r and |r| <= ln 2 / 256,
//
//     e^x = 2^(k / 128) e^r
//
// where 2^(k / 128) is a power of two times a number of a table, and e^r - 1 a short series.
// See Note [Elementary functions].
//
// Method: P. T. P. Tang, "Table-driven implementation of the exponential function in IEEE
// floating-point arithmetic", 1989.
#include "framework/runtime/math/elementary.h"
#include "framework/runtime/math/exp_log.h"

namespace moegrad::math {
namespace {

constexpr double kStepsPerUnit = 0x1.71547652b82fep7;  // 128 / ln 2

// The parts of ln 2 / 128: 35 bits each of the first two, so that k times them is exact.
constexpr double kStep0 = 0x1.62e42fef8p-8;
constexpr double kStep1 = 0x1.1cf79abc8p-43;
constexpr double kStep2 = 0x1.e3b39803f2f6bp-79;
constexpr DoubleDouble kStep = DoubleDouble{kStep0} + kStep1 + kStep2;

// 1 / n!
constexpr auto kFactors = table<28>([](int n) {
  DoubleDouble factor = {1.0};
  for (int i = 2; i <= n; ++i) factor = factor / i;
  return factor;
});
constexpr double kC3 = kFactors[3].high, kC4 = kFactors[4].high, kC5 = kFactors[5].high,
                 kC6 = kFactors[6].high;

// 2^(i / 128)
constexpr auto kPowers = table<128>([](int i) { return polynomial(kFactors, kStep * i); });

// 1 / (n + 1)!, of (e^r - 1) / r.
constexpr auto kExpSeries =
    table<11>([](int n) { return kFactors[static_cast<std::size_t>(n + 1)]; });

// k as a place in kPowers and as a power of two.
struct Step {
  DoubleDouble power;
  std::int64_t exponent;

  explicit Step(double k)
      : power(kPowers[static_cast<std::size_t>(static_cast<std::int64_t>(k) & 127)]),
        exponent(static_cast<std::int64_t>(k) >> 7) {}
};

// e^x = 2^exponent (power + product)
struct Parts {
  DoubleDouble power, product;
  std::int64_t exponent;
};

Parts parts_accurate(const DoubleDouble& x) {
  const double k = nearest_integer(x.high * kStepsPerUnit);
  const auto r = DoubleDouble{x.high - k * kStep0} + x.low + -k * kStep1 + two_product(-k, kStep2);
  const Step step(k);
  return {step.power, step.power * (polynomial(kExpSeries, r, 7) * r), step.exponent};
}

// tanh(x) = (e^2x - 1) / (e^2x + 1). As 1 is taken from the power, a small x loses no digits.
template <class T>
T tanh_of(const T& power_less_one, const T& product) {
  const T less_one = power_less_one + product;
  return less_one / (less_one + 2.0);
}

DoubleDouble tanh_accurate(double x) {
  const auto [power, product, exponent] = parts_accurate({2.0 * x});
  const double scale = power_of_two(exponent);
  return tanh_of(power * scale + -1.0, product * scale);
}

// The same in double: e^x = scale (power + product). Each of the two has a relative error below
// 2^-50.
struct QuickParts {
  double power, product, scale;
};

QuickParts parts_quick(double x) {
  const double k = nearest_integer(x * kStepsPerUnit);
  const double r = (x - k * kStep0) - k * (kStep1 + kStep2);
  const Step step(k);
  const double square = r * r;
  const double series = r + square * ((0.5 + r * kC3) + square * (kC4 + r * kC5));
  return {step.power.high, step.power.high * series, power_of_two(step.exponent)};
}

}  // namespace

Scaled exp_accurate(const DoubleDouble& x) {
  const auto [power, product, exponent] = parts_accurate(x);
  const auto sum = fast_two_sum(power.high, product.high);
  const auto low = DoubleDouble{power.low} + sum.low + product.low;
  return {fast_two_sum(sum.high, round_to_odd(low)), exponent};
}

// The error is that of the last bits of numbers near r^2 / 2 < 2^-17.
Scaled exp_quick(const DoubleDouble& x) {
  const double k = nearest_integer(x.high * kStepsPerUnit);
  const double first = x.high - k * kStep0, second = k * (kStep1 + kStep2) - x.low;
  const double r = first - second, rest = (first - r) - second;
  const double square = r * r;
  const double series =
      rest + square * ((0.5 + r * kC3) + square * ((kC4 + r * kC5) + square * kC6));
  const Step step(k);
  const auto product = two_product(step.power.high, r);
  auto sum = fast_two_sum(step.power.high, product.high);
  sum.low += product.low + (step.power.low + (step.power.low * r + step.power.high * series));
  return {sum, step.exponent};
}

float exp(float x) {
  if (!(std::abs(x) < 104.0F)) return x != x ? kNaN<float> : x > 0.0F ? kInfinity<float> : 0.0F;
  const auto [power, product, scale] = parts_quick(x);
  const double value = (power + product) * scale;
  if (rounds_surely(value, 0x1p-47 * value)) return static_cast<float>(value);
  return round_to_float(exp_accurate(DoubleDouble{x}));
}

double exp(double x) {
  if (!(std::abs(x) < 750.0)) return x != x ? kNaN<double> : x > 0.0 ? kInfinity<double> : 0.0;
  if (std::abs(x) < 708.0) {
    const auto [value, exponent] = exp_quick(DoubleDouble{x});
    if (rounds_surely(value, 0x1p-66)) return (value.high + value.low) * power_of_two(exponent);
  }
  return round_to_double(exp_accurate(DoubleDouble{x}));
}

float tanh(float x) {
  const float size = std::abs(x);
  if (!(size < 10.0F)) return x != x ? kNaN<float> : std::copysign(1.0F, x);
  if (size < 0x1p-13F) return x;  // x - x^3 / 3 + ...
  const auto [power, product, scale] = parts_quick(2.0 * size);
  const double value = tanh_of(power * scale - 1.0, product * scale);
  const bool sure = rounds_surely(value, 0x1p-43 * value);
  return std::copysign(
      sure ? static_cast<float>(value) : round_to_float({.value = tanh_accurate(size)}), x);
}

double tanh(double x) {
  const double size = std::abs(x);
  if (!(size < 20.0)) return x != x ? kNaN<double> : std::copysign(1.0, x);
  if (size < 0x1p-27) return x;
  return std::copysign(tanh_accurate(size).high, x);
}

}  // namespace moegrad::math
