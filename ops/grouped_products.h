// SPDX-License-Identifier: Apache-2.0
#pragma once

// What linear, grouped_matmul and npu_grouped_matmul have in common, without the tape. Rows of x
// are grouped by expert: group e is rows [offsets[e], offsets[e + 1]). Order of operations: Note
// [Matmul order] (kernels/matmul_tile.h).

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "framework/autograd/function.h"
#include "framework/tensor/tensor.h"
#include "ops/kernels/pack.h"
#include "ops/routing.h"

namespace moegrad::ops {

/// One matrix [k, n] inside a tensor, as a product reads it. It holds the handle, never a pointer,
/// because the bytes may be freed and refilled (Note [Storage that is freed and refilled]).
struct StoredMatrix {
  Tensor tensor;
  std::int64_t offset = 0;  // elements from the first of the tensor
  kernels::RightForm form = kernels::RightForm::kRows;
  std::int64_t stride = 0;  // as in kernels::RightOperand
  std::int64_t k = 0;
  std::int64_t n = 0;
};

/// LayoutError unless the FRACTAL_NZ weight [E, K, N] or [E * K, N] has blocks of that shape. An ND
/// one passes.
void check_blocks(std::string_view op, const Tensor& weight, std::int64_t experts);

/// The `experts` matrices of a weight, ND [E, K, N] or [E * K, N] row-major or NZ blocks of those;
/// `transposed` reads each as its transpose [N, K].
std::vector<StoredMatrix> stored_matrices(const Tensor& weight, std::int64_t experts,
                                          bool transposed);

/// y[group e] = x[group e] W_e,   x: [M, k] row-major, W_e: [k, n], y: [M, n]
///
/// All are of one dtype. For each matrix that has rows and is not NZ, counts one packed_panels
/// (rows copied into panels) or one transposed_packs (transposed while being packed), and the
/// packed_bytes. An NZ matrix is read in place in both orientations, one of bfloat16 in that which
/// it was packed for (LayoutError unless its pairs are those of this rank's kernels).
Tensor multiply_row_groups(const Tensor& x, const std::vector<StoredMatrix>& matrices,
                           const std::vector<std::int64_t>& offsets, std::int64_t n);

/// multiply_row_groups() for one group, into the row-major y. The y of bfloat16 operands may be
/// float32; then nothing is rounded.
void multiply_rows(const Tensor& x, const StoredMatrix& matrix, Tensor& y);

/// w[e] = x[group e]^T y[group e],   x: [M, K], y: [M, N] row-major, w: [E, K, N] under `shape`
///
/// w is float32 for bfloat16 operands. Groups without rows give zeros.
Tensor multiply_column_groups(const Tensor& x, const Tensor& y,
                              const std::vector<std::int64_t>& offsets, const Shape& shape);

/// multiply_column_groups() as the gradient of tensor input `i` of the Function, whose backward
/// calls this. The rows of several sources are multiplied apart (Note [The sum of a gradient]);
/// undefined if the products have been sent to a leaf, each with its place.
Tensor weight_gradient(const Function& function, std::size_t i, const Tensor& x, const Tensor& y,
                       const RowGroups& groups);

/// w = x^T y for one group. With `adds`, w = w + x^T y.
void multiply_columns(const Tensor& x, const Tensor& y, bool adds, Tensor& w);

}  // namespace moegrad::ops
