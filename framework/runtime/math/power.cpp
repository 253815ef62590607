// SPDX-License-Identifier: Apache-2.0
// pow. x^y = e^(y log x), unless x^y is a number of 54 bits or fewer: then it may lie exactly
// between two numbers, and is computed with integers. See Note [Elementary functions].
#include <optional>

#include "framework/runtime/math/elementary.h"
#include "framework/runtime/math/exp_log.h"

namespace moegrad::math {
namespace {

bool is_integer(double y) { return std::floor(y) == y; }

bool is_odd(double y) { return is_integer(y) && !is_integer(0.5 * y); }

// x^y for finite x > 0 other than 1, and finite y, if it is an odd number below 2^54 times a power
// of two. With x = m 2^e, m odd, and y = n / 2^k, n odd or k = 0, m must be a square k times over,
// e even as often, and then m^n small, or m 1. The result is exact.
std::optional<Scaled> exact_power(double x, double y) {
  std::int64_t e = std::ilogb(x) - 52;
  auto integer = static_cast<std::uint64_t>(std::scalbn(x, static_cast<int>(-e)));
  e += std::countr_zero(integer);
  auto m = static_cast<double>(integer >> static_cast<unsigned>(std::countr_zero(integer)));
  for (; !is_integer(y); y *= 2.0, e /= 2) {
    const double root = std::sqrt(m);
    if (e % 2 != 0 || root * root != m || !is_integer(root)) return {};
    m = root;
  }
  if (m != 1.0 && !(y >= 0.0 && y <= 34.0)) return {};
  const auto exponent = static_cast<std::int64_t>(static_cast<double>(e) * y);
  integer = 1;
  if (m != 1.0) {
    for (int i = 0; i < static_cast<int>(y); ++i) {
      if (static_cast<double>(integer) * m >= 0x1p54) return {};
      integer *= static_cast<std::uint64_t>(m);
    }
  }
  const double high = static_cast<double>(integer);
  const auto low = static_cast<std::int64_t>(integer - static_cast<std::uint64_t>(high));
  const auto size = std::ilogb(high);
  const double scale = power_of_two(-size);
  return Scaled{{high * scale, static_cast<double>(low) * scale}, exponent + size};
}

// x^y for finite x > 0 other than 1 and finite y other than 0, where |y log x| < 800.
Scaled pow_accurate(double x, double y) {
  if (const auto exact = exact_power(x, y)) return *exact;
  return exp_accurate(log_accurate({x}) * y);
}

float pow_of(float x, float y) {
  const auto log = log_quick({x});
  const double product = log.high * y;
  if (product > 100.0) return kInfinity<float>;
  if (product < -110.0) return 0.0F;
  const auto power = exp_quick(two_product(log.high, y) + log.low * y);
  const double value = (power.value.high + power.value.low) * power_of_two(power.exponent);
  if (rounds_surely(value, 0x1p-46 * value)) return static_cast<float>(value);
  return round_to_float(pow_accurate(x, y));
}

double pow_of(double x, double y) {
  const double product = log_quick({x}).high * y;
  if (product > 750.0) return kInfinity<double>;
  if (product < -750.0) return 0.0;
  if (std::abs(product) < 0x1p-55) return 1.0;
  return round_to_double(pow_accurate(x, y));
}

// Annex F.10.4.4 of the C standard.
template <class T>
T pow_of_any(T x, T y) {
  const T size = std::abs(x);
  if (x == T{1} || y == T{0}) return T{1};
  if (x != x || y != y) return kNaN<T>;
  if (std::abs(y) == kInfinity<T>) {
    return size == T{1} ? T{1} : (size > T{1}) == (y > T{0}) ? kInfinity<T> : T{0};
  }
  const bool minus = std::signbit(x) && is_odd(y);
  if (x == T{0} || size == kInfinity<T>) {
    const T result = (x == T{0}) == (y > T{0}) ? T{0} : kInfinity<T>;
    return minus ? -result : result;
  }
  if (x < T{0} && !is_integer(y)) return kNaN<T>;
  const T result = size == T{1} ? T{1} : pow_of(size, y);
  return minus ? -result : result;
}

}  // namespace

float pow(float x, float y) { return pow_of_any(x, y); }
double pow(double x, double y) { return pow_of_any(x, y); }

}  // namespace moegrad::math
