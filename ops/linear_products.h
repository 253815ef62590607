// SPDX-License-Identifier: Apache-2.0
#pragma once

// What linear and its parallel forms have in common, without the tape.

#include <cstdint>
#include <optional>
#include <string_view>

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

struct LinearArguments {
  std::int64_t gradient_rows = 0;
  Dtype dtype = Dtype::kFloat32;  // of y
};

/// The arguments of linear() as `op` has checked them.
LinearArguments checked_linear(std::string_view op, const Tensor& x, const Tensor& weight,
                               std::int64_t gradient_rows, std::optional<Dtype> dtype);

/// A contiguous [..., n] as a matrix [rows, n].
Tensor as_matrix(const Tensor& x);
/// The matrix [rows, n] as [..., n], where `shape` has as many rows.
Tensor with_last_dim(const Tensor& matrix, Shape shape);

/// x W^T in `dtype`,   x: [..., in]   weight: [out, in]   -> [..., out]
Tensor linear_product(const Tensor& x, const Tensor& weight, Dtype dtype);

/// The gradients of y = x W^T from g = dL/dy [rows, out], W being of `dtype`:
///
///     dL/dx = g W       into grad_x [rows, in], unless that is undefined; else `weight` is not
///     read dL/dW = g^T x     into grad_weight [out, in], unless that is undefined; else x [rows,
///     in] is
///                       not read
void linear_gradients(const Tensor& g, const Tensor& x, const Tensor& weight, Dtype dtype,
                      std::int64_t gradient_rows, Tensor& grad_x, Tensor& grad_weight);

}  // namespace moegrad::ops
