// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

/// Moves each row of x to mean 0 and scales it to variance 1, then scales and shifts it:
///
///     y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * w + b      x, y: [..., D]   w, b:
///     [D]
///
/// An undefined weight counts as ones, an undefined bias as zeros. ShapeError for sizes that do not
/// fit and for rows without elements, DtypeError unless all are float32 or all are float64,
/// ValueError for a negative eps.
///
/// Reference: Ba, Kiros & Hinton, 2016, https://arxiv.org/abs/1607.06450
Tensor layer_norm(const Tensor& x, const Tensor& weight = {}, const Tensor& bias = {},
                  double eps = 1e-5);

}  // namespace moegrad::ops
