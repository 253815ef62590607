// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "framework/distributed/process_group.h"
#include "framework/tensor/tensor.h"

namespace moegrad::ops {

/// Row look-up:  y[..., :] = weight[ids[...], :]     ids: int64 [...]   weight: [V, H]   y: [...,
/// H]
///
/// The weight is float32, float64 or bfloat16, and y as the weight. The gradient of a row adds the
/// tokens that used it, by halving over all positions (Note [Sums by halving]); that of a bfloat16
/// weight is float32. An id outside [0, V) is a ValueError, a weight that is not a matrix a
/// ShapeError, other dtypes a DtypeError.
Tensor embedding(const Tensor& ids, const Tensor& weight);

/// The same where R ranks divide the vocabulary, and each has V / R rows of the weight, in their
/// order (Note [One objective on all ranks]). Ranks that do not have an id give -0, which changes
/// no sum, so y and gradients have the bits of embedding(). y is alike on all ranks; with
/// `divided_rows` it is a part: y [n / R, ..., H] of ids [n, ...]. ShapeError unless the ranks then
/// divide n; ValueError for a null group and for an id outside [0, V).
Tensor vocabulary_parallel_embedding(const std::shared_ptr<ProcessGroup>& group, const Tensor& ids,
                                     const Tensor& weight, bool divided_rows = false,
                                     const CollectiveOptions& options = {});

}  // namespace moegrad::ops
