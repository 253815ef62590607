// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moegrad::kernels {

enum class BinaryOp : std::uint8_t {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kMaximum,  // NaN if an operand is
  kMinimum,
  kShareOfMaximum,  // 1 if a is the larger one, 1/2 if both are equal, 0 if b is
  kPow,
  kPowByBase,      // d a^b / da
  kPowByExponent,  // d a^b / db
};
enum class UnaryOp : std::uint8_t {
  kAbs,
  kExp,
  kLog,
  kLog1p,
  kSin,
  kCos,
  kSqrt,
  kRsqrt,
  kSquare,
  kSigmoid,
  kTanh,
  kSilu,
  kRelu,
  kGelu,
  kGeluTanh,
  kSoftplus
};

/// True if the derivative is computed from the result, false if from the argument.
constexpr bool saves_result(UnaryOp op) {
  return op == UnaryOp::kExp || op == UnaryOp::kSqrt || op == UnaryOp::kRsqrt ||
         op == UnaryOp::kSigmoid || op == UnaryOp::kTanh;
}

/// y[i] = a[i * a_step] op b[i * b_step] for i < n; steps are 0 or 1.
template <class T>
void binary(BinaryOp op, const T* a, std::int64_t a_step, const T* b, std::int64_t b_step, T* y,
            std::int64_t n);

/// y[i] = op(x[i])
template <class T>
void unary(UnaryOp op, const T* x, T* y, std::int64_t n);

/// dx[i] = dy[i] * op'(saved[i]); saved is y if saves_result(op), else x.
template <class T>
void unary_backward(UnaryOp op, const T* dy, const T* saved, T* dx, std::int64_t n);

/// y[i] = min(max(x[i], least), most); NaN stays.
template <class T>
void clamp(const T* x, T least, T most, T* y, std::int64_t n);

/// dx[i] = dy[i] where least <= x[i] <= most, else 0
template <class T>
void clamp_backward(const T* dy, const T* x, T least, T most, T* dx, std::int64_t n);

/// y[i] = scale * x[i] + shift; nothing is added when shift is 0, so that -0 stays -0.
template <class T>
void affine(const T* x, T scale, T shift, T* y, std::int64_t n);

}  // namespace moegrad::kernels
