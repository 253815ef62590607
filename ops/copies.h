// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

/// `a` itself when it is contiguous, otherwise a row-major copy, which the current rank counts in
/// counters().materialized_transposes. A FRACTAL_NZ tensor comes back as it is: the op that reads
/// it accepts or refuses it.
Tensor contiguous(const Tensor& a);
/// Row i of the result is row indices[i] of `a` [N, ...]; indices: int64 [n]. The gradient adds
/// rows in ascending i. An index outside [0, N) is a ValueError.
Tensor index_select(const Tensor& a, const Tensor& indices);
/// float32 <-> float64.
Tensor cast(const Tensor& a, Dtype dtype);

}  // namespace moegrad::ops
