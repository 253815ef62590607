// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <numbers>

#include "framework/runtime/math/elementary.h"

namespace moegrad::kernels {

/// x P(X <= x) for a standard normal X:  x (1 + erf(x / sqrt(2))) / 2
///
/// Reference: Hendrycks & Gimpel, 2016, https://arxiv.org/abs/1606.08415
template <class T>
T gelu(T x) {
  return T{0.5} * x * (T{1} + math::erf(x * (std::numbers::sqrt2_v<T> / T{2})));
}

/// d gelu / dx: the distribution function, and x times the density.
template <class T>
T gelu_slope(T x) {
  constexpr T kDensityAtZero = std::numbers::inv_sqrtpi_v<T> / std::numbers::sqrt2_v<T>;
  return T{0.5} * (T{1} + math::erf(x * (std::numbers::sqrt2_v<T> / T{2}))) +
         x * kDensityAtZero * math::exp(T{-0.5} * x * x);
}

template <class T>
inline constexpr T kGeluCubic = static_cast<T>(0.044715);

/// The approximation x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 of the same paper.
template <class T>
T gelu_tanh(T x) {
  constexpr T kScale = std::numbers::sqrt2_v<T> * std::numbers::inv_sqrtpi_v<T>;
  return T{0.5} * x * (T{1} + math::tanh(kScale * (x + kGeluCubic<T> * x * x * x)));
}

template <class T>
T gelu_tanh_slope(T x) {
  constexpr T kScale = std::numbers::sqrt2_v<T> * std::numbers::inv_sqrtpi_v<T>;
  const T t = math::tanh(kScale * (x + kGeluCubic<T> * x * x * x));
  const T inner = kScale * (T{1} + T{3} * kGeluCubic<T> * x * x);
  return T{0.5} * (T{1} + t) + T{0.5} * x * (T{1} - t * t) * inner;
}

}  // namespace moegrad::kernels
