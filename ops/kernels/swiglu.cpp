// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/swiglu.h"

#include "ops/kernels/exp.h"
#include "ops/kernels/for_rows.h"
#include "ops/kernels/row_reduce.h"

namespace moegrad::kernels {
namespace {

// __restrict, because the compiler cannot see that these rows do not overlap.
template <class T>
void swiglu_row(T weight, const T* __restrict gate, const T* __restrict up, T* __restrict y,
                std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = weight * (gate[i] * sigmoid(gate[i]) * up[i]);
}

template <class T>
void swiglu_row_backward(const T* __restrict dy, const T* __restrict gate, const T* __restrict up,
                         T* __restrict dgate, T* __restrict dup, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const T s = sigmoid(gate[i]);
    dgate[i] = dy[i] * up[i] * s * (T{1} + gate[i] * (T{1} - s));
    dup[i] = dy[i] * gate[i] * s;
  }
}

template <class T>
void scale(T weight, T* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) x[i] *= weight;
}

}  // namespace

template <class T>
void swiglu(const T* gate_up, const T* weights, T* y, std::int64_t rows, std::int64_t inner) {
  for_rows(rows, inner, [=](std::int64_t r) {
    const T* gate = gate_up + 2 * r * inner;
    const T weight = weights != nullptr ? weights[r] : T{1};
    swiglu_row(weight, gate, gate + inner, y + r * inner, inner);
  });
}

// A row's gradients are made for weight 1, where <dup, up> is the gradient of the weight, and then
// scaled: the row is still in the cache.
template <class T>
void swiglu_backward(const T* dy, const T* gate_up, const T* weights, T* dgate_up, T* dweights,
                     std::int64_t rows, std::int64_t inner) {
  for_rows(rows, inner, [=](std::int64_t r) {
    const T *gate = gate_up + 2 * r * inner, *up = gate + inner;
    T *dgate = dgate_up + 2 * r * inner, *dup = dgate + inner;
    swiglu_row_backward(dy + r * inner, gate, up, dgate, dup, inner);
    if (dweights != nullptr) dweights[r] = static_cast<T>(halved_row_dot(dup, up, inner));
    if (weights != nullptr) scale(weights[r], dgate, 2 * inner);
  });
}

template void swiglu(const float*, const float*, float*, std::int64_t, std::int64_t);
template void swiglu(const double*, const double*, double*, std::int64_t, std::int64_t);
template void swiglu_backward(const float*, const float*, const float*, float*, float*,
                              std::int64_t, std::int64_t);
template void swiglu_backward(const double*, const double*, const double*, double*, double*,
                              std::int64_t, std::int64_t);

}  // namespace moegrad::kernels
