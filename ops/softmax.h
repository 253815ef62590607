// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "framework/tensor/tensor.h"
#include "ops/no_dimension.h"

namespace moegrad::ops {

/// Along dimension `dim`:  y_i = exp(x_i - m) / sum_j exp(x_j - m),  m = max_j x_j;
/// x, y: float32 or float64 (DtypeError), a dimension out of range is a ShapeError. Another
/// dimension than the last one is moved there by a copy.
Tensor softmax(const Tensor& a, std::int64_t dim = -1);
template <NoDimension T>
Tensor softmax(const Tensor& a, T no_dim) = delete;

/// Along dimension `dim`:  y_i = x_i - log sum_j exp(x_j);  shapes and errors as softmax.
Tensor log_softmax(const Tensor& a, std::int64_t dim = -1);
template <NoDimension T>
Tensor log_softmax(const Tensor& a, T no_dim) = delete;

}  // namespace moegrad::ops
