// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

/// General dense algebra through Eigen, the plain reference path:
///
///     c[b, m, n] = sum over k of a[b, m, k] * b[b, k, n]     a: [M, K] or [B, M, K]
///                                                            b: [K, N] or [B, K, N]
///
/// An operand without B is used for every b. The result is [M, N], or [B, M, N] if an operand has
/// B. Other shapes are a ShapeError, different dtypes a DtypeError. Eigen chooses its blocking from
/// the sizes, so the bits of a row may depend on the number of rows.
Tensor matmul(const Tensor& a, const Tensor& b);

}  // namespace moegrad::ops
