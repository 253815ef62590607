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

inline void check_operand(std::string_view op, const Tensor& operand, std::size_t& position) {
  check<UndefinedTensorError>(operand.defined(), op, ": input ", position,
                              " must be a defined tensor, got an undefined one");
  check_whole(op, operand, position++);
}

inline void check_operand(std::string_view op, const TensorList& operands, std::size_t& position) {
  for (const auto& operand : operands) check_operand(op, operand, position);
}

}  // namespace detail

/// Every op calls it before it looks at shapes. Throws UndefinedTensorError unless each operand, a
/// Tensor or a TensorList, is defined, and Error for a shard (Note [Shards are no operands]).
template <class... Operands>
void check_operands(std::string_view op, const Operands&... operands) {
  std::size_t position = 0;
  (detail::check_operand(op, operands, position), ...);
}

/// DtypeError unless the dtype of `a` supports arithmetic.
inline void check_floating(std::string_view op, const Tensor& a) {
  check<DtypeError>(is_floating(a.dtype()), op, ": needs float32 or float64, got ", a.dtype());
}

/// The same for an operand with a name.
inline void check_floating(std::string_view op, std::string_view name, const Tensor& a) {
  check<DtypeError>(is_floating(a.dtype()), op, ": ", name, " must be float32 or float64, got ",
                    a.dtype());
}

/// DtypeError unless the operand is float32, float64 or bfloat16.
inline void check_reals(std::string_view op, std::string_view name, const Tensor& a) {
  check<DtypeError>(holds_reals(a.dtype()), op, ": ", name,
                    " must be float32, float64 or bfloat16, got ", a.dtype());
}

/// ValueError unless `eps`, which is added to a mean of squares, is finite and not negative.
inline void check_norm_eps(std::string_view op, double eps) {
  check<ValueError>(std::isfinite(eps) && eps >= 0, op, ": eps must be finite and >= 0, got ", eps);
}

/// DtypeError unless `b` has the dtype of `a`; the message names both.
inline void check_same_dtype(std::string_view op, std::string_view name_a, const Tensor& a,
                             std::string_view name_b, const Tensor& b) {
  check<DtypeError>(b.dtype() == a.dtype(), op, ": ", name_a, " is ", a.dtype(), " but ", name_b,
                    " is ", b.dtype());
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
