// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

/// `a` itself when it is contiguous, otherwise a row-major copy, which the current rank counts in
/// counters().materialized_transposes. A FRACTAL_NZ tensor comes back as it is: the op that reads
/// it accepts or refuses it.
Tensor contiguous(const Tensor& a);
/// A copy with its own storage, of any dtype, contiguous, or of the same FRACTAL_NZ blocks.
Tensor clone(const Tensor& a);
/// The same numbers in another dtype; masks become 0 and 1, and what is not 0 becomes true. It has
/// a gradient between reals, which is not rounded: that of a float32 weight is float32.
Tensor cast(const Tensor& a, Dtype dtype);
/// `a` itself, but in float32 if it is bfloat16: what arithmetic is done with.
Tensor widened(const Tensor& a);

}  // namespace moegrad::ops
