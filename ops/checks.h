// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "framework/distributed/shard_spec.h"
#include "framework/runtime/error.h"
#include "framework/tensor/tensor.h"

namespace moegrad::ops {

namespace detail {

inline void check_operand(std::string_view op, const Tensor& operand, std::size_t& position,
                          bool quantized) {
  check<UndefinedTensorError>(operand.defined(), op, ": input ", position,
                              " must be a defined tensor, got an undefined one");
  check<DtypeError>(quantized || !is_quantized(operand.dtype()), op, ": input ", position,
                    " must not be int32 or int8, got ", operand.dtype(),
                    cast_hint(operand.dtype()));
  check_whole(op, operand, position++);
}

inline void check_operand(std::string_view op, const TensorList& operands, std::size_t& position,
                          bool quantized) {
  for (const auto& operand : operands) check_operand(op, operand, position, quantized);
}

}  // namespace detail

/// Every op calls it before it looks at shapes. Throws UndefinedTensorError unless each operand, a
/// Tensor or a TensorList, is defined, DtypeError for int32 and int8, and Error for a shard (Note
/// [Shards are no operands]).
template <class... Operands>
void check_operands(std::string_view op, const Operands&... operands) {
  std::size_t position = 0;
  (detail::check_operand(op, operands, position, /*quantized=*/false), ...);
}

/// The same for ops that take int32 and int8, too: views, copies and mm_all_reduce.
template <class... Operands>
void check_operands_of_any_dtype(std::string_view op, const Operands&... operands) {
  std::size_t position = 0;
  (detail::check_operand(op, operands, position, /*quantized=*/true), ...);
}

/// DtypeError unless the dtype of `a` supports arithmetic.
inline void check_floating(std::string_view op, const Tensor& a) {
  check<DtypeError>(is_floating(a.dtype()), op, ": needs float32 or float64, got ", a.dtype(),
                    cast_hint(a.dtype()));
}

/// The same for an operand with a name.
inline void check_floating(std::string_view op, std::string_view name, const Tensor& a) {
  check<DtypeError>(is_floating(a.dtype()), op, ": ", name, " must be float32 or float64, got ",
                    a.dtype(), cast_hint(a.dtype()));
}

/// DtypeError unless `a` is float32, float64 or bfloat16.
inline void check_reals(std::string_view op, const Tensor& a) {
  check<DtypeError>(holds_reals(a.dtype()), op, ": needs float32, float64 or bfloat16, got ",
                    a.dtype());
}
inline void check_reals(std::string_view op, std::string_view name, const Tensor& a) {
  check<DtypeError>(holds_reals(a.dtype()), op, ": ", name,
                    " must be float32, float64 or bfloat16, got ", a.dtype());
}

/// ValueError unless `eps`, which is added to a mean of squares, is finite and not negative.
inline void check_norm_eps(std::string_view op, double eps) {
  check<ValueError>(std::isfinite(eps) && eps >= 0, op, ": eps must be finite and >= 0, got ", eps);
}

/// The hint for the refusal of two dtypes that do not go together.
constexpr std::string_view cast_hint(Dtype a, Dtype b) {
  return cast_hint(cast_hint(a).empty() ? b : a);
}

/// DtypeError unless `b` has the dtype of `a`; the message names both.
inline void check_same_dtype(std::string_view op, std::string_view name_a, const Tensor& a,
                             std::string_view name_b, const Tensor& b) {
  check<DtypeError>(b.dtype() == a.dtype(), op, ": ", name_a, " is ", a.dtype(), " but ", name_b,
                    " is ", b.dtype(), cast_hint(a.dtype(), b.dtype()));
}

/// DtypeError unless `b` is what ops compute in for `a`: float32 for bfloat16, else the dtype of
/// `a`.
inline void check_arithmetic_dtype(std::string_view op, std::string_view name_a, const Tensor& a,
                                   std::string_view name_b, const Tensor& b) {
  if (a.dtype() != Dtype::kBFloat16) return check_same_dtype(op, name_a, a, name_b, b);
  check<DtypeError>(b.dtype() == Dtype::kFloat32, op, ": ", name_b, " must be float32 for ", name_a,
                    " in bfloat16, got ", b.dtype(), cast_hint(b.dtype()));
}

/// ValueError unless every element of contiguous int64 `indices` is in [0, size); `what` names one.
inline void check_indices(std::string_view op, std::string_view what, const Tensor& indices,
                          std::int64_t size) {
  const auto values = indices.data<std::int64_t>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    check<ValueError>(0 <= values[i] && values[i] < size, op, ": ", what, " must be in [0, ", size,
                      "), got ", values[i], " at position ", i);
  }
}

}  // namespace moegrad::ops
