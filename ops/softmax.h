// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

/// Over the last dimension:  y_i = exp(x_i - m) / sum_j exp(x_j - m),  m = max_j x_j;
/// x, y: [..., D], float32 or float64 (DtypeError), at least one dimension (ShapeError).
Tensor softmax(const Tensor& a);

/// Over the last dimension:  y_i = x_i - log sum_j exp(x_j);  shapes and errors as softmax.
Tensor log_softmax(const Tensor& a);

}  // namespace moegrad::ops
