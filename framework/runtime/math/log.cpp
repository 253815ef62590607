// SPDX-License-Identifier: Apache-2.0
// log and log1p. With x = 2^e m, m in [11/16, 11/8), and r = n / 512 near 1 / m from a table,
//
//     log x = e ln 2 - log r + log(1 + z),    z = m r - 1,  |z| < 2^-7
//
// where z is exact. Near 1, e and log r are 0, so nothing cancels. log1p x is the logarithm of the
// exact sum 1 + x. See Note [Elementary functions].
//
// Method: P. T. P. Tang, "Table-driven implementation of the logarithm function in IEEE
// floating-point arithmetic", 1990.
#include "framework/runtime/math/elementary.h"
#include "framework/runtime/math/exp_log.h"

namespace moegrad::math {
namespace {

// The parts of ln 2: 35 bits each of the first two, so that e times them is exact.
constexpr double kLn2Part0 = 0x1.62e42fef8p-1;
constexpr double kLn2Part1 = 0x1.1cf79abc8p-36;
constexpr double kLn2Part2 = 0x1.e3b39803f2f6bp-72;

// 1 / (2n + 1), of atanh(u) / u in powers of u^2.
constexpr auto kAtanhSeries = table<24>([](int n) { return DoubleDouble{1.0} / (2.0 * n + 1.0); });

// (-1)^n / (n + 1), of log(1 + z) / z.
constexpr auto kLogSeries =
    table<16>([](int n) { return DoubleDouble{n % 2 == 0 ? 1.0 : -1.0} / (n + 1.0); });
constexpr auto kC = table<11>(
    [](int n) { return n == 0 ? 0.0 : kLogSeries[static_cast<std::size_t>(n - 1)].high; });

struct Reciprocal {
  double r;
  DoubleDouble log;  // -log r
};

// Intervals of m of length 2^-8 below 1 and 2^-7 above: the upper 7 bits of m, counted from 11/16.
constexpr auto kReciprocals = table<128>([](int i) {
  const double middle = i < 80 ? 0.6875 + (i + 0.5) / 256.0 : 1.0 + (i - 79.5) / 128.0;
  const double r = i == 79 || i == 80 ? 1.0 : nearest_integer(512.0 / middle) / 512.0;
  const auto u = DoubleDouble{1.0 - r} / (1.0 + r);
  return Reciprocal{r, polynomial(kAtanhSeries, u * u) * u * 2.0};
});

struct Reduced {
  double exponent;
  double m;
  double scale;  // 2^-e, but at least 2^-1000
  const Reciprocal& reciprocal;
};

Reduced reduce(double x) {
  constexpr std::uint64_t kLeast = std::bit_cast<std::uint64_t>(0.6875);
  double of_denormal = 0.0;
  if (x < 0x1p-1022) {
    x *= 0x1p54;
    of_denormal = 54.0;
  }
  const auto bits = std::bit_cast<std::uint64_t>(x);
  const auto above = static_cast<std::int64_t>(bits - kLeast);
  const auto exponent = above >> 52;
  return {static_cast<double>(exponent) - of_denormal,
          std::bit_cast<double>(bits - (static_cast<std::uint64_t>(exponent) << 52U)),
          power_of_two(exponent > 1000 ? -1000 : -exponent),
          kReciprocals[static_cast<std::size_t>(above >> 45 & 127)]};
}

// m r - 1, where low is a small part of x: below 1, or nothing beside it.
DoubleDouble z_of(const Reduced& reduced, double low) {
  const auto product = two_product(reduced.m, reduced.reciprocal.r);
  return fast_two_sum(product.high - 1.0, product.low + low * reduced.scale * reduced.reciprocal.r);
}

// The quick phase of float, with a relative error below 2^-49.
double log_in_double(const DoubleDouble& x) {
  const auto reduced = reduce(x.high);
  const auto& [r, of_r] = reduced.reciprocal;
  const double z = (reduced.m * r - 1.0) + x.low * reduced.scale * r, square = z * z;
  const double tail = square * ((kC[2] + z * kC[3]) +
                                square * ((kC[4] + z * kC[5]) + square * (kC[6] + z * kC[7])));
  return reduced.exponent * (kLn2Part0 + kLn2Part1) + (of_r.high + (z + tail));
}

float log_to_float(const DoubleDouble& x) {
  const double value = log_in_double(x);
  if (rounds_surely(value, 0x1p-47 * value)) return static_cast<float>(value);
  return round_to_float({.value = log_accurate(x)});
}

double log_to_double(const DoubleDouble& x) {
  const auto value = log_quick(x);
  if (rounds_surely(value, log_error(value))) return value.high + value.low;
  return log_accurate(x).high;
}

}  // namespace

DoubleDouble log_accurate(const DoubleDouble& x) {
  const auto reduced = reduce(x.high);
  const auto z = z_of(reduced, x.low);
  const double e = reduced.exponent;
  const auto of_power = two_sum(e * kLn2Part0, e * kLn2Part1) + e * kLn2Part2;
  return of_power + reduced.reciprocal.log + polynomial(kLogSeries, z, 8) * z;
}

DoubleDouble log_quick(const DoubleDouble& x) {
  const auto reduced = reduce(x.high);
  const auto z = z_of(reduced, x.low);
  const double e = reduced.exponent;
  const double h = z.high, square = h * h;
  const double end = (kC[6] + h * kC[7]) + square * ((kC[8] + h * kC[9]) + square * kC[10]);
  const double tail =
      square * ((kC[2] + h * kC[3]) + square * ((kC[4] + h * kC[5]) + square * end));
  const auto of_r = fast_two_sum(e * kLn2Part0, reduced.reciprocal.log.high);
  auto sum = fast_two_sum(of_r.high, h);
  sum.low += of_r.low + (e * (kLn2Part1 + kLn2Part2) + reduced.reciprocal.log.low) + (z.low + tail);
  return sum;
}

float log(float x) {
  if (!(x > 0.0F)) return x == 0.0F ? -kInfinity<float> : kNaN<float>;
  if (x == kInfinity<float>) return x;
  return log_to_float({x});
}

double log(double x) {
  if (!(x > 0.0)) return x == 0.0 ? -kInfinity<double> : kNaN<double>;
  if (x == kInfinity<double>) return x;
  return log_to_double({x});
}

float log1p(float x) {
  if (!(x > -1.0F)) return x == -1.0F ? -kInfinity<float> : kNaN<float>;
  if (x == kInfinity<float> || std::abs(x) < 0x1p-26F) return x;  // x - x^2 / 2 + ...
  return log_to_float(two_sum(1.0, x));
}

double log1p(double x) {
  if (!(x > -1.0)) return x == -1.0 ? -kInfinity<double> : kNaN<double>;
  if (x == kInfinity<double> || std::abs(x) < 0x1p-54) return x;
  return log_to_double(two_sum(1.0, x));
}

}  // namespace moegrad::math
