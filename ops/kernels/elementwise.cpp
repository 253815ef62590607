// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/elementwise.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "framework/runtime/math/elementary.h"
#include "framework/runtime/parallel_for.h"
#include "framework/tensor/dtype.h"
#include "ops/kernels/exp.h"
#include "ops/kernels/gelu.h"
#include "ops/kernels/write_row.h"

namespace moegrad::kernels {
namespace {

template <class S, class F>
void map(const S* x, S* y, std::int64_t n, const F& f) {
  constexpr std::int64_t kGrain = 16384;
  using T = ArithmeticOf<S>;
  parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    write_row(y + begin, end - begin, [&](std::int64_t i) { return f(T(x[begin + i])); });
  });
}

template <class S, class F>
void map(const S* a, const S* b, S* y, std::int64_t n, const F& f) {
  constexpr std::int64_t kGrain = 16384;
  using T = ArithmeticOf<S>;
  parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    write_row(y + begin, end - begin,
              [&](std::int64_t i) { return f(T(a[begin + i]), T(b[begin + i])); });
  });
}

// The steps are constants in each of the four loops, so that they vectorise.
template <class A, class B, class Y, class F>
void map_steps(const A* a, std::int64_t a_step, const B* b, std::int64_t b_step, Y* y,
               std::int64_t n, const F& f) {
  using T = ArithmeticOf<A>;
  if (a_step == 1 && b_step == 1) {
    for (std::int64_t i = 0; i < n; ++i) y[i] = Y(f(T(a[i]), T(b[i])));
  } else if (a_step == 1) {
    for (std::int64_t i = 0; i < n; ++i) y[i] = Y(f(T(a[i]), T(*b)));
  } else if (b_step == 1) {
    for (std::int64_t i = 0; i < n; ++i) y[i] = Y(f(T(*a), T(b[i])));
  } else {
    for (std::int64_t i = 0; i < n; ++i) y[i] = Y(f(T(*a), T(*b)));
  }
}

// Sums and products, of which bfloat16 is one operand or both.
template <class A, class B, class Y>
void narrow_binary(BinaryOp op, const A* a, std::int64_t a_step, const B* b, std::int64_t b_step,
                   Y* y, std::int64_t n) {
  assert(takes_bfloat16(op));
  if (op == BinaryOp::kAdd) {
    map_steps(a, a_step, b, b_step, y, n, [](float p, float q) { return p + q; });
  } else {
    map_steps(a, a_step, b, b_step, y, n, [](float p, float q) { return p * q; });
  }
}

template <class T>
T silu(T x) {
  return x * sigmoid(x);
}

// g silu'(x)
template <class T>
T silu_backward(T g, T x) {
  const T s = sigmoid(x);
  return g * s * (T{1} + x * (T{1} - s));
}

}  // namespace

template <class T>
void binary(BinaryOp op, const T* a, std::int64_t a_step, const T* b, std::int64_t b_step, T* y,
            std::int64_t n) {
  switch (op) {
    case BinaryOp::kAdd:
      return map_steps(a, a_step, b, b_step, y, n, [](T p, T q) { return p + q; });
    case BinaryOp::kSub:
      return map_steps(a, a_step, b, b_step, y, n, [](T p, T q) { return p - q; });
    case BinaryOp::kMul:
      return map_steps(a, a_step, b, b_step, y, n, [](T p, T q) { return p * q; });
    case BinaryOp::kDiv:
      return map_steps(a, a_step, b, b_step, y, n, [](T p, T q) { return p / q; });
    case BinaryOp::kMaximum:
      return map_steps(a, a_step, b, b_step, y, n,
                       [](T p, T q) { return p > q || std::isnan(p) ? p : q; });
    case BinaryOp::kMinimum:
      return map_steps(a, a_step, b, b_step, y, n,
                       [](T p, T q) { return p < q || std::isnan(p) ? p : q; });
    case BinaryOp::kShareOfMaximum:
      return map_steps(a, a_step, b, b_step, y, n, [](T p, T q) {
        return p < q ? T{0} : p == q ? T{0.5} : T{1};
      });
    case BinaryOp::kPow:
      return map_steps(a, a_step, b, b_step, y, n, [](T p, T q) { return math::pow(p, q); });
    case BinaryOp::kPowByBase:
      return map_steps(a, a_step, b, b_step, y, n,
                       [](T p, T q) { return q == T{0} ? T{0} : q * math::pow(p, q - T{1}); });
    case BinaryOp::kPowByExponent:
      return map_steps(a, a_step, b, b_step, y, n, [](T p, T q) {
        return p == T{0} && q >= T{0} ? T{0} : math::pow(p, q) * math::log(p);
      });
  }
}

void binary(BinaryOp op, const BFloat16* a, std::int64_t a_step, const BFloat16* b,
            std::int64_t b_step, BFloat16* y, std::int64_t n) {
  narrow_binary(op, a, a_step, b, b_step, y, n);
}
void binary(BinaryOp op, const BFloat16* a, std::int64_t a_step, const float* b,
            std::int64_t b_step, float* y, std::int64_t n) {
  narrow_binary(op, a, a_step, b, b_step, y, n);
}
void binary(BinaryOp op, const float* a, std::int64_t a_step, const BFloat16* b,
            std::int64_t b_step, float* y, std::int64_t n) {
  narrow_binary(op, a, a_step, b, b_step, y, n);
}

template <class T>
void unary(UnaryOp op, const T* x, T* y, std::int64_t n) {
  switch (op) {
    case UnaryOp::kAbs:
      return map(x, y, n, [](T v) { return std::abs(v); });
    case UnaryOp::kExp:
      return map(x, y, n, [](T v) { return exp(v); });
    case UnaryOp::kLog:
      return map(x, y, n, [](T v) { return math::log(v); });
    case UnaryOp::kLog1p:
      return map(x, y, n, [](T v) { return math::log1p(v); });
    case UnaryOp::kSin:
      return map(x, y, n, [](T v) { return math::sin(v); });
    case UnaryOp::kCos:
      return map(x, y, n, [](T v) { return math::cos(v); });
    case UnaryOp::kSqrt:
      return map(x, y, n, [](T v) { return std::sqrt(v); });
    case UnaryOp::kRsqrt:
      return map(x, y, n, [](T v) { return T{1} / std::sqrt(v); });
    case UnaryOp::kSquare:
      return map(x, y, n, [](T v) { return v * v; });
    case UnaryOp::kSigmoid:
      return map(x, y, n, [](T v) { return sigmoid(v); });
    case UnaryOp::kTanh:
      return map(x, y, n, [](T v) { return math::tanh(v); });
    case UnaryOp::kSilu:
      return map(x, y, n, [](T v) { return silu(v); });
    case UnaryOp::kRelu:
      return map(x, y, n, [](T v) { return v < T{0} ? T{0} : v; });
    case UnaryOp::kGelu:
      return map(x, y, n, [](T v) { return gelu(v); });
    case UnaryOp::kGeluTanh:
      return map(x, y, n, [](T v) { return gelu_tanh(v); });
    case UnaryOp::kSoftplus:
      return map(x, y, n, [](T v) { return std::max(v, T{0}) + math::log1p(exp(-std::abs(v))); });
  }
}

void unary([[maybe_unused]] UnaryOp op, const BFloat16* x, BFloat16* y, std::int64_t n) {
  assert(takes_bfloat16(op));
  map(x, y, n, [](float v) { return silu(v); });
}

template <class T>
void unary_backward(UnaryOp op, const T* dy, const T* saved, T* dx, std::int64_t n) {
  switch (op) {
    case UnaryOp::kAbs:
      return map(dy, saved, dx, n, [](T g, T x) {
        return x > T{0} ? g : x < T{0} ? -g : g * x;  // 0 at 0, NaN at NaN
      });
    case UnaryOp::kExp:
      return map(dy, saved, dx, n, [](T g, T y) { return g * y; });
    case UnaryOp::kLog:
      return map(dy, saved, dx, n, [](T g, T x) { return g / x; });
    case UnaryOp::kLog1p:
      return map(dy, saved, dx, n, [](T g, T x) { return g / (T{1} + x); });
    case UnaryOp::kSin:
      return map(dy, saved, dx, n, [](T g, T x) { return g * math::cos(x); });
    case UnaryOp::kCos:
      return map(dy, saved, dx, n, [](T g, T x) { return -g * math::sin(x); });
    case UnaryOp::kSqrt:
      return map(dy, saved, dx, n, [](T g, T y) { return g / (T{2} * y); });
    case UnaryOp::kRsqrt:
      return map(dy, saved, dx, n, [](T g, T y) { return g * T{-0.5} * y * y * y; });
    case UnaryOp::kSquare:
      return map(dy, saved, dx, n, [](T g, T x) { return g * T{2} * x; });
    case UnaryOp::kSigmoid:
      return map(dy, saved, dx, n, [](T g, T y) { return g * y * (T{1} - y); });
    case UnaryOp::kTanh:
      return map(dy, saved, dx, n, [](T g, T y) { return g * (T{1} - y * y); });
    case UnaryOp::kSilu:
      return map(dy, saved, dx, n, [](T g, T x) { return silu_backward(g, x); });
    case UnaryOp::kRelu:
      return map(dy, saved, dx, n, [](T g, T x) { return x <= T{0} ? T{0} : g; });
    case UnaryOp::kGelu:
      return map(dy, saved, dx, n, [](T g, T x) { return g * gelu_slope(x); });
    case UnaryOp::kGeluTanh:
      return map(dy, saved, dx, n, [](T g, T x) { return g * gelu_tanh_slope(x); });
    case UnaryOp::kSoftplus:
      return map(dy, saved, dx, n, [](T g, T x) { return g * sigmoid(x); });
  }
}

void unary_backward([[maybe_unused]] UnaryOp op, const BFloat16* dy, const BFloat16* saved,
                    BFloat16* dx, std::int64_t n) {
  assert(takes_bfloat16(op));
  map(dy, saved, dx, n, [](float g, float x) { return silu_backward(g, x); });
}

template <class T>
void clamp(const T* x, T least, T most, T* y, std::int64_t n) {
  map(x, y, n, [=](T v) { return v < least ? least : v > most ? most : v; });
}

template <class T>
void clamp_backward(const T* dy, const T* x, T least, T most, T* dx, std::int64_t n) {
  map(dy, x, dx, n, [=](T g, T v) { return least <= v && v <= most ? g : T{0}; });
}

template <class S, class T>
void affine(const S* x, T scale, T shift, S* y, std::int64_t n) {
  if (shift == T{0}) return map(x, y, n, [=](T v) { return scale * v; });
  map(x, y, n, [=](T v) { return scale * v + shift; });
}

template void binary(BinaryOp, const float*, std::int64_t, const float*, std::int64_t, float*,
                     std::int64_t);
template void binary(BinaryOp, const double*, std::int64_t, const double*, std::int64_t, double*,
                     std::int64_t);
template void unary(UnaryOp, const float*, float*, std::int64_t);
template void unary(UnaryOp, const double*, double*, std::int64_t);
template void unary_backward(UnaryOp, const float*, const float*, float*, std::int64_t);
template void unary_backward(UnaryOp, const double*, const double*, double*, std::int64_t);
template void clamp(const float*, float, float, float*, std::int64_t);
template void clamp(const double*, double, double, double*, std::int64_t);
template void clamp_backward(const float*, const float*, float, float, float*, std::int64_t);
template void clamp_backward(const double*, const double*, double, double, double*, std::int64_t);
template void affine(const float*, float, float, float*, std::int64_t);
template void affine(const double*, double, double, double*, std::int64_t);
template void affine(const BFloat16*, float, float, BFloat16*, std::int64_t);

}  // namespace moegrad::kernels
