// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/bias_activation.h"

#include "ops/kernels/exp.h"
#include "ops/kernels/for_rows.h"
#include "ops/kernels/gelu.h"

namespace moegrad::kernels {

template <class T>
void bias_gelu(const T* x, const T* bias, T* y, std::int64_t rows, std::int64_t d) {
  for_rows(rows, d, [=](std::int64_t r) {
    for (std::int64_t i = 0; i < d; ++i) y[r * d + i] = gelu(x[r * d + i] + bias[i]);
  });
}

template <class T>
void bias_gelu_backward(const T* dy, const T* x, const T* bias, T* dx, std::int64_t rows,
                        std::int64_t d) {
  for_rows(rows, d, [=](std::int64_t r) {
    for (auto i = r * d; i < (r + 1) * d; ++i) dx[i] = dy[i] * gelu_slope(x[i] + bias[i - r * d]);
  });
}

template <class T>
void bias_swiglu(const T* x, const T* bias, T* y, std::int64_t rows, std::int64_t inner) {
  for_rows(rows, inner, [=](std::int64_t r) {
    const T *gate = x + 2 * r * inner, *up = gate + inner;
    for (std::int64_t i = 0; i < inner; ++i) {
      const T a = gate[i] + bias[i];
      y[r * inner + i] = a * sigmoid(a) * (up[i] + bias[inner + i]);
    }
  });
}

template <class T>
void bias_swiglu_backward(const T* dy, const T* x, const T* bias, T* dx, std::int64_t rows,
                          std::int64_t inner) {
  for_rows(rows, inner, [=](std::int64_t r) {
    const T *gate = x + 2 * r * inner, *up = gate + inner;
    T *dgate = dx + 2 * r * inner, *dup = dgate + inner;
    for (std::int64_t i = 0; i < inner; ++i) {
      const T g = dy[r * inner + i], a = gate[i] + bias[i], s = sigmoid(a);
      dgate[i] = g * (up[i] + bias[inner + i]) * s * (T{1} + a * (T{1} - s));
      dup[i] = g * a * s;
    }
  });
}

#define MOEGRAD_INSTANTIATE(T)                                                                    \
  template void bias_gelu(const T*, const T*, T*, std::int64_t, std::int64_t);                    \
  template void bias_gelu_backward(const T*, const T*, const T*, T*, std::int64_t, std::int64_t); \
  template void bias_swiglu(const T*, const T*, T*, std::int64_t, std::int64_t);                  \
  template void bias_swiglu_backward(const T*, const T*, const T*, T*, std::int64_t, std::int64_t);
MOEGRAD_INSTANTIATE(float)
MOEGRAD_INSTANTIATE(double)
#undef MOEGRAD_INSTANTIATE

}  // namespace moegrad::kernels
