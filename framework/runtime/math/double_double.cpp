// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/math/double_double.h"

#include <algorithm>

namespace moegrad::math {
namespace {

// A denormal double is a multiple of 2^-1074, and its bits are that multiple. `place` is the
// exponent of the last of the 53 bits of high; two more bits tell on which side of high the value
// is.
double round_to_denormal(const DoubleDouble& value, std::int64_t place) {
  const auto bits = std::bit_cast<std::uint64_t>(std::abs(value.high));
  const double low = value.high < 0.0 ? -value.low : value.low;
  auto units = ((bits & ((1ULL << 52U) - 1)) | 1ULL << 52U) << 2U;
  if (low > 0.0) ++units;
  if (low < 0.0) --units;
  const auto shift = std::min<std::int64_t>(-1074 - place, 58) + 2;
  const auto kept = units >> shift, rest = units - (kept << shift), half = 1ULL << (shift - 1);
  const bool up = rest > half || (rest == half && (kept & 1U) != 0);
  return std::copysign(std::bit_cast<double>(kept + (up ? 1 : 0)), value.high);
}

}  // namespace

double round_to_double(const Scaled& x) {
  const auto exponent = std::clamp<std::int64_t>(x.exponent, -1100, 1100);
  const auto place = std::ilogb(x.value.high) - 52 + exponent;
  if (place < -1074) return round_to_denormal(x.value, place);
  const auto half = exponent / 2;
  return x.value.high * power_of_two(half) * power_of_two(exponent - half);
}

float round_to_float(const Scaled& x) {
  const auto exponent = std::clamp<std::int64_t>(x.exponent, -300, 300);
  return static_cast<float>(round_to_odd(x.value) * power_of_two(exponent));
}

}  // namespace moegrad::math
