// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "framework/distributed/process_group.h"
#include "framework/tensor/tensor.h"

namespace moegrad::ops {

/// What column_parallel_linear and row_parallel_linear take besides.
struct ParallelLinearOptions {
  /// The rows of what all ranks have alike otherwise, x or y, are divided over the ranks
  /// (sequence parallelism).
  bool divided_rows = false;
  std::int64_t gradient_rows = 0;             // of ops::linear
  std::optional<Dtype> dtype = std::nullopt;  // of ops::linear
  /// Into how many runs each rank's rows are cut, so that the transfer of one runs beside the
  /// product of another, in forward and backward. No bit depends on it.
  std::int64_t tiles = 1;
  CollectiveOptions collective = {};
};

// y = x W^T whose weight is divided over the R ranks of a group (Note [One objective on all
// ranks]).
//
// Note [Linear layers on several ranks]
// A column-parallel layer has out / R rows of W on each rank, so columns of y. Its x is alike on
// all ranks, and each brings a summand of dL/dx. A row-parallel layer has in / R columns of W, and
// those of x, as a column-parallel one leaves them. Each rank has a summand of y. Summands are
// float32 for bfloat16 operands, and rounded after the sum. The halves of a sum along `in` or `out`
// are added in the same order on one rank (Note [Sums by halving]) and, over the ranks, in Note
// [Reduction order], so y and all gradients have the bits of ops::linear where R is a power of two,
// 16 R divides the dimension that is cut and 2 / R of it are more than 128 (for bfloat16 32 and
// 256). For that each layer sums its own dL/dx: the sum of what q, k and v bring on one rank, then
// over the ranks, would be another order.
//
// Backward multiplies for the weight while the other gradient is summed. With `tiles` a product
// begins with the rows that have arrived, and rows whose product is done are on their way; they go
// from the result's place on one rank to that on another.

/// x: [..., in], alike   weight: [out / R, in]   y: [..., out / R], a part. With divided_rows
/// x is [rows / R, ..., in], a part, and y [rows, ..., out / R]; rows are gathered in forward and
/// once more in backward. Errors as of linear and all_gather.
Tensor column_parallel_linear(const std::shared_ptr<ProcessGroup>& group, const Tensor& x,
                              const Tensor& weight, const ParallelLinearOptions& options = {});

/// x: [..., in / R], a part   weight: [out, in / R]   y: [..., out], alike. With divided_rows y is
/// [rows / R, ..., out], a part. ShapeError if the ranks do not divide the rows; errors as of
/// linear. ValueError, here and above, for tiles below 1.
Tensor row_parallel_linear(const std::shared_ptr<ProcessGroup>& group, const Tensor& x,
                           const Tensor& weight, const ParallelLinearOptions& options = {});

}  // namespace moegrad::ops
