// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

/// Whether two tensors of one dtype (DtypeError), which may be any, have the same shape and equal
/// elements. As everywhere 0 equals -0, and NaN nothing.
bool equal(const Tensor& a, const Tensor& b);

/// Whether for all elements  |a - b| <= atol + rtol |b|,  computed in float64. An infinity is close
/// to itself alone, NaN to nothing, or with `equal_nan` to NaN. Operands have one dtype, float32,
/// float64 or bfloat16 (DtypeError), and shapes that broadcast (ShapeError). ValueError for a
/// negative tolerance.
bool allclose(const Tensor& a, const Tensor& b, double rtol = 1e-5, double atol = 1e-8,
              bool equal_nan = false);

}  // namespace moegrad::ops
