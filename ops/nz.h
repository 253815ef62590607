// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

// Conversions between row-major ND and FRACTAL_NZ (Note [FRACTAL_NZ]). They are copies outside the
// tape: results carry no graph. float32 and float64.

/// a: [K, N] or [B, K, N] ND -> the same shape as NZ blocks, padding zero. Counts one
/// nz_conversions.
Tensor nd_to_nz(const Tensor& a);

/// The inverse, into the tensor's shape.
Tensor nz_to_nd(const Tensor& a);

/// Cuts [start, end) along `dim` (0 or 1) out of the matrix `in` [R, C], ND, and writes it into
/// `out`, an NZ tensor whose blocks [batch, k, n] stack to the slice: [batch * k, n]. Padding
/// becomes zero. bfloat16 input may widen to a float32 output. Counts one nz_conversions.
///
/// Known as npu_special_slice (aclnnSliceNz); renamed because its reviewers found that name too
/// broad.
void slice_to_nz(const Tensor& in, std::int64_t dim, std::int64_t start, std::int64_t end,
                 Tensor& out);

}  // namespace moegrad::ops
