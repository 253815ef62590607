// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

// Float32 or float64 (DtypeError). Without `dim` the result has shape []; with it that dimension is
// removed, or of size 1 when `keepdim`. A dimension out of range is a ShapeError. The order of
// additions depends on the shape alone.

Tensor sum(const Tensor& a);
Tensor sum(const Tensor& a, std::int64_t dim, bool keepdim = false);
/// NaN over nothing.
Tensor mean(const Tensor& a);
Tensor mean(const Tensor& a, std::int64_t dim, bool keepdim = false);
/// The greatest values; the gradient goes to the first of equals. NaN counts as the greatest. The
/// dimension must not be empty (ShapeError).
Tensor max(const Tensor& a, std::int64_t dim, bool keepdim = false);

}  // namespace moegrad::ops
