// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

// Products of two tensors; their sums are matmul's and so have its order of additions.

/// c[b, m, n] = sum over k of a[b, m, k] * b[b, k, n];  a: [B, M, K]   b: [B, K, N]   c: [B, M, N]
/// ShapeError for other shapes, DtypeError unless both are float32 or both are float64.
Tensor bmm(const Tensor& a, const Tensor& b);

/// c[i, j] = a[i] * b[j];  a: [N]   b: [M]   c: [N, M].  Errors as in bmm.
Tensor outer(const Tensor& a, const Tensor& b);

/// The sum of products that `equation` names, as in PyTorch:
///
///     einsum("bhqd,bhkd->bhqk", q, k)      scores of attention
///     einsum("ij,j", matrix, vector)       [I]
///
/// One letter stands for each dimension of an operand. Elements of equal letters are multiplied,
/// and the letters that the result does not name are summed over. Without "->", the result has the
/// letters that appear once, in alphabetical order. Spaces are skipped.
///
/// ValueError for an equation that is not of this form: two operands, letters only, none twice in
/// an operand or in the result, none in the result alone. ShapeError unless there is a letter for
/// each dimension, with one size wherever it stands; DtypeError as in bmm.
Tensor einsum(std::string_view equation, const Tensor& a, const Tensor& b);

}  // namespace moegrad::ops
