// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

// Two operands must have the same floating dtype (DtypeError) and shapes that broadcast as in
// PyTorch (ShapeError): shapes are aligned at the last dimension; dimensions of size 1 and missing
// dimensions are repeated.

Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);
Tensor add(const Tensor& a, double b);
Tensor mul(const Tensor& a, double b);

Tensor neg(const Tensor& a);
Tensor exp(const Tensor& a);
Tensor log(const Tensor& a);
Tensor sqrt(const Tensor& a);
/// 1 / sqrt(a)
Tensor rsqrt(const Tensor& a);
Tensor square(const Tensor& a);
/// 1 / (1 + exp(-a))
Tensor sigmoid(const Tensor& a);
Tensor tanh(const Tensor& a);
/// a * sigmoid(a)
Tensor silu(const Tensor& a);
/// max(a, 0), with gradient 0 at 0
Tensor relu(const Tensor& a);

}  // namespace moegrad::ops

namespace moegrad {

// In this namespace, not in ops, so that argument-dependent lookup finds them.
Tensor operator+(const Tensor& a, const Tensor& b);
Tensor operator-(const Tensor& a, const Tensor& b);
Tensor operator*(const Tensor& a, const Tensor& b);
Tensor operator/(const Tensor& a, const Tensor& b);
Tensor operator+(const Tensor& a, double b);
Tensor operator-(const Tensor& a, double b);
Tensor operator*(const Tensor& a, double b);
Tensor operator/(const Tensor& a, double b);
Tensor operator+(double a, const Tensor& b);
Tensor operator-(double a, const Tensor& b);
Tensor operator*(double a, const Tensor& b);
Tensor operator/(double a, const Tensor& b);
Tensor operator-(const Tensor& a);

}  // namespace moegrad
