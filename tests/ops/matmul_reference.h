// SPDX-License-Identifier: Apache-2.0
#pragma once

// What Note [Matmul order] promises, as scalar loops: one chain of fused multiply-adds per element.

#include <cmath>
#include <cstdint>
#include <utility>

#include "framework/tensor/tensor.h"

namespace moegrad::test {

template <class T>
T chain_step(T a, T b, T y) {
#if defined(__FMA__)
  return std::fma(a, b, y);
#else
  return a * b + y;  // what the portable kernels do
#endif
}

/// Rows and columns of an operand of `chains`: element (i, p) is data[i * row + p * k].
template <class T>
struct Operand {
  const T* data;
  std::int64_t row, k;
};

/// c[i, j] = chain over p < k of a(i, p) b(j, p); c is row-major [m, n].
template <class T>
void chains(Operand<T> a, Operand<T> b, std::int64_t m, std::int64_t n, std::int64_t k, T* c) {
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      T y = 0;
      for (std::int64_t p = 0; p < k; ++p) {
        y = chain_step(a.data[i * a.row + p * a.k], b.data[j * b.row + p * b.k], y);
      }
      c[i * n + j] = y;
    }
  }
}

}  // namespace moegrad::test
