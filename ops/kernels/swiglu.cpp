// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/swiglu.h"

#include <algorithm>

#include "framework/runtime/parallel_for.h"
#include "ops/kernels/exp.h"

namespace moegrad::kernels {
namespace {

// __restrict, because the compiler cannot see that these rows do not overlap.
template <class T>
void swiglu_row(const T* __restrict gate, const T* __restrict up, T* __restrict y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = gate[i] * sigmoid(gate[i]) * up[i];
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

template <class Body>
void for_rows(std::int64_t rows, std::int64_t inner, const Body& body) {
  const auto grain = std::max<std::int64_t>(1, 4096 / std::max<std::int64_t>(1, inner));
  parallel_for(rows, grain, [&](std::int64_t begin, std::int64_t end) {
    for (auto r = begin; r < end; ++r) body(r);
  });
}

}  // namespace

template <class T>
void swiglu(const T* gate_up, T* y, std::int64_t rows, std::int64_t inner) {
  for_rows(rows, inner, [=](std::int64_t r) {
    const T* gate = gate_up + 2 * r * inner;
    swiglu_row(gate, gate + inner, y + r * inner, inner);
  });
}

template <class T>
void swiglu_backward(const T* dy, const T* gate_up, T* dgate_up, std::int64_t rows,
                     std::int64_t inner) {
  for_rows(rows, inner, [=](std::int64_t r) {
    const T* gate = gate_up + 2 * r * inner;
    T* dgate = dgate_up + 2 * r * inner;
    swiglu_row_backward(dy + r * inner, gate, gate + inner, dgate, dgate + inner, inner);
  });
}

template void swiglu(const float*, float*, std::int64_t, std::int64_t);
template void swiglu(const double*, double*, std::int64_t, std::int64_t);
template void swiglu_backward(const float*, const float*, float*, std::int64_t, std::int64_t);
template void swiglu_backward(const double*, const double*, double*, std::int64_t, std::int64_t);

}  // namespace moegrad::kernels
