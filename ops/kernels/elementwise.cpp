// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/elementwise.h"

#include <algorithm>
#include <cmath>

#include "framework/runtime/math/elementary.h"
#include "framework/runtime/parallel_for.h"
#include "ops/kernels/exp.h"
#include "ops/kernels/gelu.h"

namespace moegrad::kernels {
namespace {

template <class T, class F>
void map(const T* x, T* y, std::int64_t n, const F& f) {
  constexpr std::int64_t kGrain = 16384;
  parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = begin; i < end; ++i) y[i] = f(x[i]);
  });
}

template <class T, class F>
void map(const T* a, const T* b, T* y, std::int64_t n, const F& f) {
  constexpr std::int64_t kGrain = 16384;
  parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = begin; i < end; ++i) y[i] = f(a[i], b[i]);
  });
}

// The steps are constants in each of the four loops, so that they vectorise.
template <class T, class F>
void map_steps(const T* a, std::int64_t a_step, const T* b, std::int64_t b_step, T* y,
               std::int64_t n, const F& f) {
  if (a_step == 1 && b_step == 1) {
    for (std::int64_t i = 0; i < n; ++i) y[i] = f(a[i], b[i]);
  } else if (a_step == 1) {
    for (std::int64_t i = 0; i < n; ++i) y[i] = f(a[i], *b);
  } else if (b_step == 1) {
    for (std::int64_t i = 0; i < n; ++i) y[i] = f(*a, b[i]);
  } else {
    for (std::int64_t i = 0; i < n; ++i) y[i] = f(*a, *b);
  }
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
      return map(x, y, n, [](T v) { return v * sigmoid(v); });
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
      return map(dy, saved, dx, n, [](T g, T x) {
        const T s = sigmoid(x);
        return g * s * (T{1} + x * (T{1} - s));
      });
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

template <class T>
void clamp(const T* x, T least, T most, T* y, std::int64_t n) {
  map(x, y, n, [=](T v) { return v < least ? least : v > most ? most : v; });
}

template <class T>
void clamp_backward(const T* dy, const T* x, T least, T most, T* dx, std::int64_t n) {
  map(dy, x, dx, n, [=](T g, T v) { return least <= v && v <= most ? g : T{0}; });
}

template <class T>
void affine(const T* x, T scale, T shift, T* y, std::int64_t n) {
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

}  // namespace moegrad::kernels
