// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

struct NpuGroupedMatmulOptions {
  /// Absent, cumulative ends as a list of at most 128, or an int64 tensor of at most 1024 groups.
  std::variant<std::monostate, std::vector<std::int64_t>, Tensor> group_list = {};
  int group_type = -1;      // what is grouped: -1 nothing, 0 rows (m), 2 the reduction (k)
  int group_list_type = 0;  // 0 cumulative ends, 1 counts, 2 pairs [G, 2] of (expert, count)
  int split_item = 0;       // 0, 1: one output per weight; 2, 3: one output
  /// Reads each weight [.., K, N] as [.., N, K]: the transposed view of a FRACTAL_NZ weight, which
  /// has no strides.
  bool transpose_weight = false;
  /// Added to the rows of each group: as many tensors as weights, [N] for [K, N] and [E, N] for
  /// [E, K, N], or none. Not for group_type 2.
  TensorList bias = {};
};

/// The interface of npu_grouped_matmul (aclnnGroupedMatmul) without quantisation, on the products
/// of grouped_matmul and npu_gmm. It records nothing on the tape: to differentiate, call one of
/// these.
///
///     group_type   x, weight -> y                                             split_item
///     -1           list [m_i, k_i], list [k_i, n_i] -> list [m_i, n_i]         0, 1
///      0           [M, K], [E, K, N] or list of E [K, N] -> [M, N]             2, 3
///      0           list [m_i, K], list of E [K, N] -> [sum of m_i, N]          2, 3
///      2           [M, K] as the transposed view of [K, M], [K, N] -> [E, M, N]  2, 3
///
/// group_list is refused for -1, required for 0 and 2, and optional if x is a list. A weight may be
/// a transposed view (of its last two dimensions; all weights alike). Except for group_type 2 it
/// may also be FRACTAL_NZ. Groups without rows cost nothing, and give zeros for group_type 2.
///
/// It is stricter than the original: counts must sum to the rows (to K for group_type 2), so that
/// every row of y is written. It is more lenient: it takes empty tensors, and sizes that are not
/// multiples of 16.
TensorList npu_grouped_matmul(const TensorList& x, const TensorList& weight,
                              const NpuGroupedMatmulOptions& options);

}  // namespace moegrad::ops
