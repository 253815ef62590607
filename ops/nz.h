// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

// Conversions between row-major ND and FRACTAL_NZ (Note [FRACTAL_NZ]). They are copies, and but for
// cast_to_nz not recorded on the tape. For float32, float64 and bfloat16, whose blocks get the pairs that this
// rank's kernels read (Note [FRACTAL_NZ of bfloat16]).

/// a: [K, N] or [B, K, N] ND -> the same shape as NZ blocks, padding zero. Counts one
/// nz_conversions.
Tensor nd_to_nz(const Tensor& a);

/// The inverse of nd_to_nz. The result has the tensor's shape.
Tensor nz_to_nd(const Tensor& a);

/// Takes the slice [start, end) along `dim` (0 or 1) of the ND matrix `in` [R, C] and writes it
/// into `out`, an NZ tensor. The slice [batch * k, n] is the stack of `out`'s blocks [batch, k, n].
/// Padding becomes zero. bfloat16 input may be widened to a float32 output, and float32 input
/// rounded to a bfloat16 output. Counts one nz_conversions.
///
/// The original is called npu_special_slice (aclnnSliceNz). Its reviewers found that name too
/// broad.
void slice_to_nz(const Tensor& in, std::int64_t dim, std::int64_t start, std::int64_t end,
                 Tensor& out);

/// A float32 weight, rounded to bfloat16, as FRACTAL_NZ: what products of bfloat16 read in place.
/// The weight is the stack of `blocks`, [batch * k, n] or [batch, k, n]; with `transposed` the form
/// is that of the transposes, which linear and grouped_matmul read in forward. Recorded: the
/// weight's gradient is float32, row-major and not rounded. The blocks count as parameters in the
/// arena.
///
/// ShapeError unless the blocks fit, DtypeError unless the weight is float32. Counts one
/// nz_conversions.
Tensor cast_to_nz(const Tensor& weight, const NzBlocks& blocks, bool transposed);

}  // namespace moegrad::ops
