// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

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

/// `value` as an element of another type. What is not zero, NaN included, is true. Fractions are
/// cut off toward zero; ValueError for a real that no int64 is near.
template <class To, class From>
To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_same_v<From, BFloat16>) {
    return convert<To>(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, BFloat16>) {
    return BFloat16(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From{0};
  } else if constexpr (std::is_same_v<To, std::int64_t> && std::is_floating_point_v<From>) {
    const bool fits = From{-0x1p63} <= value && value < From{0x1p63};
    check<ValueError>(fits, "conversion: int64 holds numbers in [-2^63, 2^63), got ", value);
    return static_cast<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

}  // namespace moegrad
