// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string_view>
#include <type_traits>

#include "framework/runtime/error.h"

namespace moegrad {

/// Element types. Arithmetic is float32 or float64, and some ops take bfloat16 (Note [bfloat16 on
/// the tape]); int64 holds indices, bool masks. int8 and int32 are the operands and bias of a
/// quantised ops::mm_all_reduce, which alone reads them; they can be viewed, copied, converted,
/// printed and saved.
enum class Dtype : std::uint8_t { kFloat32, kFloat64, kBFloat16, kInt64, kInt32, kInt8, kBool };

/// The upper half of a float32. Conversion rounds to nearest, ties to even; NaN stays NaN.
struct BFloat16 {
  std::uint16_t bits = 0;

  BFloat16() = default;
  // By masks: a loop with branches is not vectorised.
  explicit BFloat16(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    const auto nan = 0U - static_cast<std::uint32_t>(value != value);  // <cmath> is large
    const auto rounded = word + 0x7fffU + ((word >> 16) & 1U), quiet = word | 0x400000U;
    bits = static_cast<std::uint16_t>(((rounded & ~nan) | (quiet & nan)) >> 16);
  }
  /// float(value) is rounded already: where that is half-way between two, what it has lost decides.
  template <std::same_as<double> Double>
  explicit BFloat16(Double value) : BFloat16(static_cast<float>(value)) {
    const auto near = static_cast<float>(value);
    const auto word = std::bit_cast<std::uint32_t>(near);
    const auto wide = static_cast<double>(near);
    if ((word & 0xffffU) != 0x8000U || !(wide < value || value < wide)) return;
    const bool beyond = value < 0 ? value < wide : wide < value;
    *this = BFloat16(std::bit_cast<float>(beyond ? word + 1 : word - 1));
  }
  explicit operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
  explicit operator double() const { return static_cast<float>(*this); }
  friend bool operator==(BFloat16, BFloat16) = default;
};

/// What elements of type S are computed in: float for BFloat16, else S.
template <class S>
using ArithmeticOf = std::conditional_t<std::is_same_v<S, BFloat16>, float, S>;

template <class T>
struct DtypeOf;
template <>
struct DtypeOf<float> {
  static constexpr Dtype value = Dtype::kFloat32;
};
template <>
struct DtypeOf<double> {
  static constexpr Dtype value = Dtype::kFloat64;
};
template <>
struct DtypeOf<BFloat16> {
  static constexpr Dtype value = Dtype::kBFloat16;
};
template <>
struct DtypeOf<std::int64_t> {
  static constexpr Dtype value = Dtype::kInt64;
};
template <>
struct DtypeOf<std::int32_t> {
  static constexpr Dtype value = Dtype::kInt32;
};
template <>
struct DtypeOf<std::int8_t> {
  static constexpr Dtype value = Dtype::kInt8;
};
template <>
struct DtypeOf<bool> {
  static constexpr Dtype value = Dtype::kBool;
};
template <class T>
inline constexpr Dtype dtype_of = DtypeOf<T>::value;
template <class T>
concept ElementType = requires {
  DtypeOf<T>::value;
};

constexpr std::int64_t size_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32:
    case Dtype::kInt32:
      return 4;
    case Dtype::kBFloat16:
      return 2;
    case Dtype::kFloat64:
    case Dtype::kInt64:
      return 8;
    case Dtype::kInt8:
    case Dtype::kBool:
      return 1;
  }
  return 0;
}

constexpr std::string_view to_string(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32:
      return "float32";
    case Dtype::kFloat64:
      return "float64";
    case Dtype::kBFloat16:
      return "bfloat16";
    case Dtype::kInt64:
      return "int64";
    case Dtype::kInt32:
      return "int32";
    case Dtype::kInt8:
      return "int8";
    case Dtype::kBool:
      return "bool";
  }
  return "unknown";
}

inline std::ostream& operator<<(std::ostream& out, Dtype dtype) { return out << to_string(dtype); }

/// True for float32 and float64.
constexpr bool is_floating(Dtype dtype) {
  return dtype == Dtype::kFloat32 || dtype == Dtype::kFloat64;
}

/// True for these and bfloat16.
constexpr bool holds_reals(Dtype dtype) { return is_floating(dtype) || dtype == Dtype::kBFloat16; }

/// What elements of this dtype are computed in, and what the gradient of a leaf is: float32 for
/// bfloat16, else the same.
constexpr Dtype arithmetic_dtype(Dtype dtype) {
  return dtype == Dtype::kBFloat16 ? Dtype::kFloat32 : dtype;
}

/// True for int64, int32 and int8.
constexpr bool is_integer(Dtype dtype) {
  return dtype == Dtype::kInt64 || dtype == Dtype::kInt32 || dtype == Dtype::kInt8;
}

/// True for int32 and int8.
constexpr bool is_quantized(Dtype dtype) { return is_integer(dtype) && dtype != Dtype::kInt64; }

/// How the refusal of a dtype ends: for bfloat16, int32 and int8 with what to call.
constexpr std::string_view cast_hint(Dtype dtype) {
  return dtype == Dtype::kBFloat16 || is_quantized(dtype) ? "; convert it with ops::cast" : "";
}

/// Calls `body.operator()<T>()` with T = float or double.
template <class Body>
decltype(auto) dispatch_floating(Dtype dtype, Body&& body) {
  if (dtype == Dtype::kFloat64) return body.template operator()<double>();
  check<DtypeError>(dtype == Dtype::kFloat32, "arithmetic needs float32 or float64, got ", dtype,
                    cast_hint(dtype));
  return body.template operator()<float>();
}

}  // namespace moegrad
