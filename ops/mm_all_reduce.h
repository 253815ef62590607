// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

struct MmAllReduceOptions {
  std::string_view reduce_op = "sum";  // the only one
  /// [n], float32 for bfloat16 operands: added once, after the sum. It, like x3, is this rank's own
  /// and must be equal on all ranks.
  Tensor bias = {};
  /// As y: added once, after the bias.
  Tensor x3 = {};
  int comm_turn = 0;  // the only one
  /// float32 or bfloat16, [1], [n] or [1, n]: for int8 operands, which need it. It is alike on all
  /// ranks.
  Tensor dequant_scale = {};
  // Reserved by the operator's document, and refused.
  Tensor antiquant_scale = {}, antiquant_offset = {};
  std::int64_t antiquant_group_size = 0;
  /// How many runs of rows the product is cut into. The reduction of one runs under the product of
  /// the next. No bit depends on it.
  std::int64_t tiles = 4;
};

/// y = all_reduce(x1 x2) + bias + x3      x1: [m, k] or [b, m, k]   x2: [k, n]   y: [.., m, n]
///
/// torch_npu's npu_mm_all_reduce_base, the row-parallel layer of tensor parallelism: each rank has
/// its part of k. `comm` is a comm_handle() of their group. y is alike on all ranks, and rounded
/// once where operands are bfloat16 (Note [One objective on all ranks]). x2 may be a transposed
/// view, which is read as it is; x1 may not.
///
///     dL/dx1 = g x2^T     dL/dx2 = x1^T g     dL/dbias = the sum of g's rows     dL/dx3 = g
///
/// none of which is reduced: g is alike. The bits are those of the product, all_reduce and the two
/// additions one after the other.
///
/// Quantised operands, x1 and x2 int8 with an int32 bias and without x3, give
///
///     y = (all_reduce(x1 x2) + bias) dequant_scale
///
/// in the dtype of dequant_scale: integers, exact and rounded once (Note [int8 products]). There is
/// no gradient.
///
/// Errors: ShapeError for shapes that do not fit, for an empty tensor and for a k of int8 above
/// (2^17 - 1) / ranks, DtypeError unless operands are all float32, all float64, all
/// bfloat16 or quantised, LayoutError for an x1 that is not contiguous and for FRACTAL_NZ,
/// ValueError for another reduce_op or comm_turn, for tiles below 1, for an argument that is
/// reserved or does not go with the operands and for a handle that no group of this rank has. A
/// mismatch between ranks is a CollectiveError.
///
/// What the operator's document demands of its hardware alone is not demanded here: float16 or
/// bfloat16 operands and results, an int64 that holds the scale, 2, 4 or 8 cards, sizes below
/// 65,536 or 2^31, one communication domain per model.
Tensor mm_all_reduce(const Tensor& x1, const Tensor& x2, const std::string& comm,
                     const MmAllReduceOptions& options = {});

}  // namespace moegrad::ops
