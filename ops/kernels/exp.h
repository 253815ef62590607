// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

#include "framework/runtime/math/elementary.h"
#include "ops/kernels/simd.h"

namespace moegrad::kernels {

/// `condition ? a : b` by masks. From a conditional, g++ makes a branch around the code that
/// follows, and then does not vectorise the loop.
inline float select(bool condition, float a, float b) {
  const auto mask = 0U - static_cast<std::uint32_t>(condition);
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(a) & mask) |
                              (std::bit_cast<std::uint32_t>(b) & ~mask));
}

/// a * b + c, rounded once if the processor can do that, as Vec's fma.
inline float multiply_add(float a, float b, float c) {
  return kFusesMultiplyAdd ? __builtin_fmaf(a, b, c) : a * b + c;
}

inline constexpr float kExpLog2E = 1.44269504088896341F;
inline constexpr float kExpLn2High = 0.693359375F;
inline constexpr float kExpLn2Low = -2.12194440e-4F;
inline constexpr float kExpRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
inline constexpr float kExpCoefficients[] = {1.9875691500e-4F, 1.3981999507e-3F, 8.3334519073e-3F,
                                             4.1665795894e-2F, 1.6666665459e-1F, 5.0000001201e-1F};

/// e^x without branches, so that a loop over it vectorises; the result is less than 1 ulp off for
/// every float, denormal results included. +inf and overflow give +inf, -inf gives 0, NaN gives
/// NaN.
///
/// x = n ln 2 + r with |r| <= ln 2 / 2, and e^r is a polynomial. ln 2 is subtracted in two parts.
/// The first part has so few bits that n times it is exact. 2^n is multiplied in as two factors,
/// because n runs from -150 to 128 while the scale of one float ends at -126 and 127.
///
/// Method and coefficients: S. L. Moshier, Cephes Math Library, expf.c,
/// http://www.netlib.org/cephes
inline float exp(float x) {
  x = select(x > 89.0F, 89.0F, x);  // NaN passes
  x = select(x < -104.0F, -104.0F, x);
  const float shifted = multiply_add(x, kExpLog2E, kExpRound);
  const float n = shifted - kExpRound;
  const float r = multiply_add(n, -kExpLn2Low, multiply_add(n, -kExpLn2High, x));
  float p = kExpCoefficients[0];  // unrolled: with a loop here, g++ does not vectorise the caller's
  p = multiply_add(p, r, kExpCoefficients[1]);
  p = multiply_add(p, r, kExpCoefficients[2]);
  p = multiply_add(p, r, kExpCoefficients[3]);
  p = multiply_add(p, r, kExpCoefficients[4]);
  p = multiply_add(p, r, kExpCoefficients[5]);
  p = multiply_add(p, r * r, r) + 1.0F;
  // The bits of `shifted` are the bits of kExpRound plus n. Unsigned arithmetic is defined for NaN,
  // too.
  const auto exponent = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(shifted) -
                                                  std::bit_cast<std::uint32_t>(kExpRound));
  const auto half = exponent >> 1;
  const auto power_of_two = [](std::int32_t e) {
    return std::bit_cast<float>((static_cast<std::uint32_t>(e) + 127U) << 23U);
  };
  return p * power_of_two(half) * power_of_two(exponent - half);
}

inline double exp(double x) { return math::exp(x); }

/// exp of every lane, with the same bits as exp of each element.
template <class T>
Vec<T> exp(const Vec<T>& x) {
  T lanes[Vec<T>::kLanes];
  x.store(lanes);
  for (auto& lane : lanes) lane = exp(lane);
  return Vec<T>::load(lanes);
}

inline Vec<float> exp(const Vec<float>& x) {
  const auto constant = [](float c) { return Vec<float>::broadcast(c); };
  const auto round = constant(kExpRound);
  // NaN passes.
  const auto y = larger(constant(-104.0F), smaller(constant(89.0F), x));
  const auto n = fma(y, constant(kExpLog2E), round) - round;
  const auto r = fma(n, constant(-kExpLn2Low), fma(n, constant(-kExpLn2High), y));
  auto p = constant(kExpCoefficients[0]);
#pragma GCC unroll 5
  for (int i = 1; i < 6; ++i) p = fma(p, r, constant(kExpCoefficients[i]));
  p = fma(p, r * r, r) + constant(1.0F);
  // However n is cut in two, the first product is exact.
  const auto half = n * constant(0.5F) + round;
  return p * power_of_two(half) * power_of_two(n - (half - round) + round);
}

/// 1 / (1 + e^-x)
template <class T>
T sigmoid(T x) {
  return T{1} / (T{1} + exp(-x));
}

}  // namespace moegrad::kernels
