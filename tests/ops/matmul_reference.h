// SPDX-License-Identifier: Apache-2.0
#pragma once

// What Note [Sums by halving] and Note [Matmul order] promise, as scalar loops. The rule is written
// down once more here: only whether this build fuses a multiplication and an addition is the
// library's word.

#include <cmath>
#include <cstdint>
#include <utility>

#include "framework/tensor/tensor.h"
#include "ops/kernels/simd.h"

namespace moegrad::test {

/// The sum of `terms` terms from `begin` on. Parts of at most `longest` terms are part(begin,
/// terms); longer ones are halved in units of `unit` terms, the odd unit on the left.
template <class Part>
auto halved(std::int64_t begin, std::int64_t terms, std::int64_t longest, std::int64_t unit,
            const Part& part) -> decltype(part(begin, terms)) {
  if (terms <= longest) return part(begin, terms);
  auto units = terms / unit;
  if (terms % unit != 0) ++units;
  const auto left = (units - units / 2) * unit;
  const auto first = halved(begin, left, longest, unit, part);
  return first + halved(begin + left, terms - left, longest, unit, part);
}

/// The sum over i < terms of term(i): one after the other within a part of at most 128.
template <class T, class Term>
T halved_sum(std::int64_t terms, const Term& term) {
  return halved(0, terms, 128, 16, [&](std::int64_t begin, std::int64_t size) {
    T sum = 0;
    for (auto i = begin; i < begin + size; ++i) sum += term(i);
    return sum;
  });
}

template <class T>
T chain_step(T a, T b, T y) {
  return kernels::kFusesMultiplyAdd ? std::fma(a, b, y) : a * b + y;
}

/// The sum over p < k of a(p) * b(p): chains of fused multiply-adds from zero within a part.
template <class T, class A, class B>
T halved_product(std::int64_t k, const A& a, const B& b) {
  return halved(0, k, 128, 16, [&](std::int64_t begin, std::int64_t size) {
    T sum = 0;
    for (auto p = begin; p < begin + size; ++p) sum = chain_step<T>(a(p), b(p), sum);
    return sum;
  });
}

/// Rows and columns of an operand of `halved_products`: element (i, p) is data[i * row + p * k].
template <class T>
struct Operand {
  const T* data;
  std::int64_t row, k;
};

/// c[i, j] = sum over p < k of a(i, p) b(j, p); c is row-major [m, n].
template <class T>
void halved_products(Operand<T> a, Operand<T> b, std::int64_t m, std::int64_t n, std::int64_t k,
                     T* c) {
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      c[i * n + j] = halved_product<T>(
          k, [&](std::int64_t p) { return a.data[i * a.row + p * a.k]; },
          [&](std::int64_t p) { return b.data[j * b.row + p * b.k]; });
    }
  }
}

}  // namespace moegrad::test
