// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

/// The product of two matrices, or of B pairs of them:
///
///     c[b, m, n] = sum over k of a[b, m, k] * b[b, k, n]     a: [M, K] or [B, M, K]
///                                                            b: [K, N] or [B, K, N]
///
/// An operand without B is used for every b; the result [M, N] has B where an operand has. Each
/// element of c is one chain of fused multiply-adds (Note [Matmul order]), so a row of c does not
/// depend on how many rows there are. Other shapes are a ShapeError, differing dtypes a DtypeError.
Tensor matmul(const Tensor& a, const Tensor& b);

/// Throws what matmul throws for operands that do not fit.
void check_matmul_operands(std::string_view op, const Tensor& a, const Tensor& b);

}  // namespace moegrad::ops
