// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace moegrad::kernels {

/// `condition ? a : b` by masks: of a conditional, g++ makes a branch around all that follows, and
/// then does not vectorise the loop.
inline float select(bool condition, float a, float b) {
  const auto mask = 0U - static_cast<std::uint32_t>(condition);
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(a) & mask) |
                              (std::bit_cast<std::uint32_t>(b) & ~mask));
}

/// e^x without branches, so that a loop over it vectorises; the result is less than 1 ulp off for
/// every float, denormal results included. +inf and overflow give +inf, -inf gives 0, NaN gives
/// NaN.
///
/// x = n ln 2 + r with |r| <= ln 2 / 2, and e^r is a polynomial. ln 2 is subtracted in two parts,
/// the first of which has so few bits that n times it is exact. 2^n is multiplied in as two
/// factors, because n runs from -150 to 128 while one float scale ends at -126 and 127.
///
/// Method and coefficients: S. L. Moshier, Cephes Math Library, expf.c,
/// http://www.netlib.org/cephes
inline float exp(float x) {
  constexpr float kLog2E = 1.44269504088896341F;
  constexpr float kLn2High = 0.693359375F;
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  x = select(x > 89.0F, 89.0F, x);       // NaN passes
  x = select(x < -104.0F, -104.0F, x);
  const float shifted = x * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  // The bits of `shifted` are those of kRound plus n; unsigned arithmetic is defined for NaN too.
  const auto exponent = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(shifted) -
                                                  std::bit_cast<std::uint32_t>(kRound));
  const auto half = exponent >> 1;
  const auto power_of_two = [](std::int32_t e) {
    return std::bit_cast<float>((static_cast<std::uint32_t>(e) + 127U) << 23U);
  };
  return p * power_of_two(half) * power_of_two(exponent - half);
}

inline double exp(double x) { return std::exp(x); }

/// 1 / (1 + e^-x)
template <class T>
T sigmoid(T x) {
  return T{1} / (T{1} + exp(-x));
}

}  // namespace moegrad::kernels
