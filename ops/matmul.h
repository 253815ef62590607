// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

/// General dense algebra through Eigen, the plain reference path:
///
///     c[b, m, n] = sum over k of a[b, m, k] * b[b, k, n]     a: [M, K] or [B, M, K]
///                                                            b: [K, N] or [B, K, N]
///
/// An operand without B is used for every b; the result [M, N] has B where an operand has. Other
/// shapes are a ShapeError, differing dtypes a DtypeError. Eigen chooses its blocking from the
/// sizes: a row's bits may depend on how many rows there are.
Tensor matmul(const Tensor& a, const Tensor& b);

}  // namespace moegrad::ops
