// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

// Operands are float32 or float64, and for add, mul and silu also bfloat16, computed in float32 and
// rounded once. Two operands must have the same dtype (DtypeError), but add takes bfloat16 and
// float32 and gives float32. Their shapes must broadcast as in PyTorch (ShapeError): shapes are
// aligned at the last dimension; dimensions of size 1 and missing dimensions are repeated.

Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);
/// The larger one. Where both are equal, either gets half of the gradient. NaN if either is.
Tensor maximum(const Tensor& a, const Tensor& b);
Tensor minimum(const Tensor& a, const Tensor& b);
Tensor maximum(const Tensor& a, double b);
Tensor minimum(const Tensor& a, double b);
/// a^b; 0^0 is 1.
Tensor pow(const Tensor& a, const Tensor& b);
Tensor add(const Tensor& a, double b);
Tensor mul(const Tensor& a, double b);
Tensor pow(const Tensor& a, double b);
Tensor pow(double a, const Tensor& b);
/// min(max(a, least), most), with gradient 0 where that changes a. Infinity leaves a side open.
/// ValueError unless least <= most.
Tensor clamp(const Tensor& a, double least, double most);

Tensor neg(const Tensor& a);
/// |a|, with gradient 0 at 0
Tensor abs(const Tensor& a);
Tensor exp(const Tensor& a);
Tensor log(const Tensor& a);
/// log(1 + a), exact for small a
Tensor log1p(const Tensor& a);
Tensor sin(const Tensor& a);
Tensor cos(const Tensor& a);
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
/// a P(X <= a) for a standard normal X:  a (1 + erf(a / sqrt(2))) / 2
///
/// Reference: Hendrycks & Gimpel, 2016, https://arxiv.org/abs/1606.08415
Tensor gelu(const Tensor& a);
/// Its approximation  a (1 + tanh(sqrt(2 / pi) (a + 0.044715 a^3))) / 2,  which PyTorch calls
/// approximate='tanh' and Hugging Face gelu_pytorch_tanh.
Tensor gelu_tanh(const Tensor& a);
/// log(1 + exp(a)), without overflow
Tensor softplus(const Tensor& a);

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

// In place:  a = a + b, ...  written into the elements of `a`, which all its views see. Views can
// stand on the left: x[0] += y. The result must have the shape of `a` (ShapeError). Nothing is
// recorded, so no operand may require a gradient (Error), unless there is a NoGradGuard.
Tensor& operator+=(Tensor& a, const Tensor& b);
Tensor& operator-=(Tensor& a, const Tensor& b);
Tensor& operator*=(Tensor& a, const Tensor& b);
Tensor& operator/=(Tensor& a, const Tensor& b);
Tensor& operator+=(Tensor& a, double b);
Tensor& operator-=(Tensor& a, double b);
Tensor& operator*=(Tensor& a, double b);
Tensor& operator/=(Tensor& a, double b);
Tensor operator+=(Tensor&& a, const Tensor& b);
Tensor operator-=(Tensor&& a, const Tensor& b);
Tensor operator*=(Tensor&& a, const Tensor& b);
Tensor operator/=(Tensor&& a, const Tensor& b);
Tensor operator+=(Tensor&& a, double b);
Tensor operator-=(Tensor&& a, double b);
Tensor operator*=(Tensor&& a, double b);
Tensor operator/=(Tensor&& a, double b);

}  // namespace moegrad
