// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "framework/tensor/dtype.h"

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

constexpr bool takes_bfloat16(BinaryOp op) { return op == BinaryOp::kAdd || op == BinaryOp::kMul; }
constexpr bool takes_bfloat16(UnaryOp op) { return op == UnaryOp::kSilu; }

/// y[i] = a[i * a_step] op b[i * b_step] for i < n; steps are 0 or 1.
template <class T>
void binary(BinaryOp op, const T* a, std::int64_t a_step, const T* b, std::int64_t b_step, T* y,
            std::int64_t n);

/// The same in float for operations of which takes_bfloat16() is true; the result is rounded once,
/// here and below.
void binary(BinaryOp op, const BFloat16* a, std::int64_t a_step, const BFloat16* b,
            std::int64_t b_step, BFloat16* y, std::int64_t n);
void binary(BinaryOp op, const BFloat16* a, std::int64_t a_step, const float* b,
            std::int64_t b_step, float* y, std::int64_t n);
void binary(BinaryOp op, const float* a, std::int64_t a_step, const BFloat16* b,
            std::int64_t b_step, float* y, std::int64_t n);

/// y[i] = op(x[i])
template <class T>
void unary(UnaryOp op, const T* x, T* y, std::int64_t n);
void unary(UnaryOp op, const BFloat16* x, BFloat16* y, std::int64_t n);

/// dx[i] = dy[i] * op'(saved[i]); saved is y if saves_result(op), else x.
template <class T>
void unary_backward(UnaryOp op, const T* dy, const T* saved, T* dx, std::int64_t n);
void unary_backward(UnaryOp op, const BFloat16* dy, const BFloat16* saved, BFloat16* dx,
                    std::int64_t n);

/// y[i] = min(max(x[i], least), most); NaN stays.
template <class T>
void clamp(const T* x, T least, T most, T* y, std::int64_t n);

/// dx[i] = dy[i] where least <= x[i] <= most, else 0
template <class T>
void clamp_backward(const T* dy, const T* x, T least, T most, T* dx, std::int64_t n);

/// y[i] = scale * x[i] + shift; nothing is added when shift is 0, so that -0 stays -0.
/// T = ArithmeticOf<S>.
template <class S, class T>
void affine(const S* x, T scale, T shift, S* y, std::int64_t n);

}  // namespace moegrad::kernels
