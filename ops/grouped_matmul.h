// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "framework/tensor/tensor.h"
#include "ops/routing.h"

namespace moegrad::ops {

/// Multiplies each group of rows by its expert's matrix:
///
///     y[offsets[e] : offsets[e + 1]] = x[offsets[e] : offsets[e + 1]] W_e
///
/// x: [M, K]   weight: [E, K, N], or [E, N, K] with `transpose_weight` (W_e is then its transpose,
/// the orientation of Hugging Face's files), or its first two dimensions as one, as experts stack
/// them   offsets: E + 1, ascending from 0 to M   y: [M, N]
///
/// The weight may be FRACTAL_NZ: forward then reads it in place. Its gradient is row-major ND of
/// the weight's shape, with zeros for experts without rows. Each element is one chain of fused
/// multiply-adds, the same bits for every layout and orientation (Note [Matmul order]). Errors:
/// ShapeError, ValueError for offsets, DtypeError unless both are float32, float64 or bfloat16
/// (Note [bfloat16 products]); the gradient of a bfloat16 weight is float32.
///
/// Reference: Gale et al., "MegaBlocks: efficient sparse training with mixture-of-experts", 2022.
Tensor grouped_matmul(const Tensor& x, const Tensor& weight,
                      const std::vector<std::int64_t>& offsets, bool transpose_weight = false);

/// The same for groups that may come from several sources. The weight's gradient is the sum of one
/// such product per source (Note [The sum of a gradient]).
Tensor grouped_matmul(const Tensor& x, const Tensor& weight, const RowGroups& groups,
                      bool transpose_weight = false);

}  // namespace moegrad::ops
