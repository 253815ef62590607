// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

#include "ops/checks.h"
#include "ops/copies.h"

namespace moegrad::ops {

/// The ids of `rows` rows that random numbers depend on, int64, contiguous: those given, or 0, 1,
/// ... ShapeError, DtypeError and ValueError unless they are int64 [rows] in [0, bound).
inline Tensor row_ids(std::string_view op, const Tensor& ids, std::int64_t rows,
                      std::int64_t bound = std::numeric_limits<std::int64_t>::max()) {
  if (!ids.defined()) return Tensor::arange(rows);
  check<ShapeError>(ids.shape() == Shape{rows}, op, ": ids must be [", rows, "], got ",
                    ids.shape());
  check<DtypeError>(ids.dtype() == Dtype::kInt64, op, ": ids must be int64, got ", ids.dtype());
  Tensor values = contiguous(ids);
  check_indices(op, "id", values, bound);
  return values;
}

}  // namespace moegrad::ops
