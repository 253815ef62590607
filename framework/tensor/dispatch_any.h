// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "framework/runtime/error.h"
#include "framework/tensor/dtype.h"

namespace moegrad {

/// Calls `body.operator()<T>()` with the element type of any dtype.
template <class Body>
void dispatch_any(Dtype dtype, const Body& body) {
  switch (dtype) {
    case Dtype::kFloat32:
      return body.template operator()<float>();
    case Dtype::kFloat64:
      return body.template operator()<double>();
    case Dtype::kBFloat16:
      return body.template operator()<BFloat16>();
    case Dtype::kInt64:
      return body.template operator()<std::int64_t>();
    case Dtype::kInt32:
      return body.template operator()<std::int32_t>();
    case Dtype::kInt8:
      return body.template operator()<std::int8_t>();
    case Dtype::kBool:
      return body.template operator()<bool>();
  }
}

/// Calls `body.operator()<T>()` with T = float, double or BFloat16.
template <class Body>
decltype(auto) dispatch_reals(Dtype dtype, Body&& body) {
  if (dtype == Dtype::kBFloat16) return body.template operator()<BFloat16>();
  return dispatch_floating(dtype, body);
}

/// Calls `body.operator()<A, B>()` for two equal dtypes, or for bfloat16 and float32.
template <class Body>
decltype(auto) dispatch_reals(Dtype a, Dtype b, const Body& body) {
  if (a != b && a == Dtype::kBFloat16) return body.template operator()<BFloat16, float>();
  if (a != b) return body.template operator()<float, BFloat16>();
  return dispatch_reals(a, [&]<class T>() { return body.template operator()<T, T>(); });
}

/// ValueError with the range of the integer type unless `fits`.
template <class Integer, class From>
void check_fits(bool fits, From value) {
  constexpr auto kBits = std::numeric_limits<Integer>::digits;
  check<ValueError>(fits, "conversion: ", dtype_of<Integer>, " holds numbers in [-2^", kBits,
                    ", 2^", kBits, "), got ", value);
}

/// `value` as an element of another type. What is not zero, NaN included, is true. Fractions are
/// cut off toward zero; ValueError for what the integer type does not hold then.
template <class To, class From>
To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_same_v<From, BFloat16>) {
    return convert<To>(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, BFloat16>) {
    using Wide = std::conditional_t<std::is_same_v<From, double>, double, float>;
    return BFloat16(static_cast<Wide>(value));
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From{0};
  } else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<From>) {
    constexpr auto kLeast = static_cast<From>(std::numeric_limits<To>::min());
    // -2^63 - 1 is -2^63 again.
    check_fits<To>((kLeast - 1 < value || value == kLeast) && value < -kLeast, value);
    return static_cast<To>(value);
  } else if constexpr (std::is_integral_v<To> && !std::is_same_v<From, bool>) {
    check_fits<To>(std::in_range<To>(value), std::int64_t{value});
    return static_cast<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

}  // namespace moegrad
