// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/swiglu.h"

#include "framework/tensor/dtype.h"
#include "ops/kernels/exp.h"
#include "ops/kernels/for_rows.h"
#include "ops/kernels/row_reduce.h"
#include "ops/kernels/write_row.h"

namespace moegrad::kernels {
namespace {

// __restrict, because the compiler cannot see that these rows do not overlap.
template <class S, class T>
void swiglu_row(T weight, const S* __restrict gate, const S* __restrict up, S* __restrict y,
                std::int64_t n) {
  write_row(y, n, [=](std::int64_t i) {
    const T a = T(gate[i]);
    return weight * (a * sigmoid(a) * T(up[i]));
  });
}

template <class S, class T>
void swiglu_row_backward(const S* __restrict dy, const S* __restrict gate, const S* __restrict up,
                         T* __restrict dgate, T* __restrict dup, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const T g = T(dy[i]), a = T(gate[i]), s = sigmoid(a);
    dgate[i] = g * T(up[i]) * s * (T{1} + a * (T{1} - s));
    dup[i] = g * a * s;
  }
}

template <class S, class T>
void scale(T weight, const T* __restrict x, S* __restrict y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = S(x[i] * weight);
}

}  // namespace

template <class S, class T>
void swiglu(const S* gate_up, const T* weights, S* y, std::int64_t rows, std::int64_t inner) {
  for_rows(rows, inner, [=](std::int64_t r) {
    const S* gate = gate_up + 2 * r * inner;
    const T weight = weights != nullptr ? weights[r] : T{1};
    swiglu_row(weight, gate, gate + inner, y + r * inner, inner);
  });
}

// The gradients of a part of a row are made for weight 1, where <dup, up> is the gradient of the
// weight, and then scaled.
template <class S, class T>
void swiglu_backward(const S* dy, const S* gate_up, const T* weights, S* dgate_up, T* dweights,
                     std::int64_t rows, std::int64_t inner) {
  for_rows(rows, inner, [=](std::int64_t r) {
    const S *gate = gate_up + 2 * r * inner, *up = gate + inner;
    S *dgate = dgate_up + 2 * r * inner, *dup = dgate + inner;
    const T weight = weights != nullptr ? weights[r] : T{1};
    const auto part = [=](std::int64_t at, std::int64_t n) {
      T part_dgate[kChainTerms], part_dup[kChainTerms];
      swiglu_row_backward(dy + r * inner + at, gate + at, up + at, part_dgate, part_dup, n);
      scale(weight, part_dgate, dgate + at, n);
      scale(weight, part_dup, dup + at, n);
      if (dweights == nullptr) return T{0};
      return lanes_sum_of<T>(0, n, [&](std::int64_t i) { return part_dup[i] * T(up[at + i]); });
    };
    const auto sum = halved_row_sum_by_parts(0, inner, part);
    if (dweights != nullptr) dweights[r] = static_cast<T>(sum);
  });
}

template void swiglu(const float*, const float*, float*, std::int64_t, std::int64_t);
template void swiglu_backward(const float*, const float*, const float*, float*, float*,
                              std::int64_t, std::int64_t);
template void swiglu(const double*, const double*, double*, std::int64_t, std::int64_t);
template void swiglu_backward(const double*, const double*, const double*, double*, double*,
                              std::int64_t, std::int64_t);
template void swiglu(const BFloat16*, const float*, BFloat16*, std::int64_t, std::int64_t);
template void swiglu_backward(const BFloat16*, const BFloat16*, const float*, BFloat16*, float*,
                              std::int64_t, std::int64_t);

}  // namespace moegrad::kernels
