// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

/// The product of two matrices, or of pairs of them, as in PyTorch:
///
///     c[..., m, n] = sum over k of a[..., m, k] * b[..., k, n]
///
/// The dimensions before the last two broadcast. An operand of one dimension is a row [1, K] on the
/// left, a column [K, 1] on the right, and the result then lacks that dimension. Each element of c
/// is one sum in the order of Note [Matmul order], so a row of c does not depend on how many rows
/// there are. The gradient of an operand that all products share is a sum over them, halved down to
/// one (Note [Sums by halving]). ShapeError for sizes that
/// do not fit, DtypeError unless both are float32 or both are float64.
Tensor matmul(const Tensor& a, const Tensor& b);

/// Throws unless the operands are [M, K] or [B, M, K], and [K, N] or [B, K, N], of one floating
/// dtype.
void check_matmul_operands(std::string_view op, const Tensor& a, const Tensor& b);

}  // namespace moegrad::ops
