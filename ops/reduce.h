// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

// For float32 or float64 (DtypeError). Without `dim` the result has shape []. With `dim`, that
// dimension is removed, or has size 1 with `keepdim`. A dimension out of range is a ShapeError. The
// order of additions depends on the shape only.

Tensor sum(const Tensor& a);
Tensor sum(const Tensor& a, std::int64_t dim, bool keepdim = false);
/// The mean of no elements is NaN.
Tensor mean(const Tensor& a);
Tensor mean(const Tensor& a, std::int64_t dim, bool keepdim = false);
/// The largest values. The gradient goes to the first of several equal ones. NaN counts as the
/// largest. The dimension must not be empty (ShapeError).
Tensor max(const Tensor& a, std::int64_t dim, bool keepdim = false);

}  // namespace moegrad::ops
