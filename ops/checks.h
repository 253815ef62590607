// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "framework/runtime/error.h"
#include "framework/tensor/tensor.h"

namespace moegrad::ops {

/// DtypeError unless arithmetic can be done on `a`.
inline void check_floating(std::string_view op, const Tensor& a) {
  check<DtypeError>(is_floating(a.dtype()), op, ": needs float32 or float64, got ", a.dtype());
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
