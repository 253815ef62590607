// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/order.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <type_traits>

#include "ops/kernels/for_rows.h"

namespace moegrad::kernels {
namespace {

template <class T>
bool is_nan(T value) {
  if constexpr (std::is_floating_point_v<T>) return std::isnan(value);
  return false;
}

// NaN is the largest.
template <class T>
bool larger(T a, T b) {
  return a > b || (is_nan(a) && !is_nan(b));
}

// NaN is beyond every number on either side.
template <class T>
bool more_extreme(T a, T b, bool largest) {
  if (is_nan(a) || is_nan(b)) return !is_nan(b);
  return largest ? a > b : a < b;
}

}  // namespace

template <class T>
void arg_extreme(const T* x, bool largest, std::int64_t* indices, std::int64_t outer,
                 std::int64_t n, std::int64_t inner) {
  for_rows(outer, n * inner, [&](std::int64_t o) {
    const T* block = x + o * n * inner;
    std::int64_t* best = indices + o * inner;
    std::fill_n(best, inner, 0);
    for (std::int64_t k = 1; k < n; ++k) {
      for (std::int64_t i = 0; i < inner; ++i) {
        const T value = block[k * inner + i], so_far = block[best[i] * inner + i];
        if (more_extreme(value, so_far, largest)) best[i] = k;
      }
    }
  });
}

template <class T>
void arg_sort(const T* x, std::int64_t k, bool descending, std::int64_t* indices,
              std::int64_t* workspace, std::int64_t outer, std::int64_t n, std::int64_t inner) {
  for_rows(outer * inner, n, [&](std::int64_t row) {
    const auto o = row / inner, i = row % inner;
    const T* column = x + o * n * inner + i;
    std::int64_t* order = workspace + row * n;
    std::iota(order, order + n, std::int64_t{0});
    // By index where values are equal, so that the order is one and sorting needs no memory.
    std::partial_sort(order, order + k, order + n, [&](std::int64_t p, std::int64_t q) {
      const T a = column[p * inner], b = column[q * inner];
      if (larger(a, b)) return descending;
      if (larger(b, a)) return !descending;
      return p < q;
    });
    for (std::int64_t j = 0; j < k; ++j) indices[(o * k + j) * inner + i] = order[j];
  });
}

#define MOEGRAD_INSTANTIATE(T)                                                                     \
  template void arg_extreme(const T*, bool, std::int64_t*, std::int64_t, std::int64_t,             \
                            std::int64_t);                                                         \
  template void arg_sort(const T*, std::int64_t, bool, std::int64_t*, std::int64_t*, std::int64_t, \
                         std::int64_t, std::int64_t);
MOEGRAD_INSTANTIATE(float)
MOEGRAD_INSTANTIATE(double)
MOEGRAD_INSTANTIATE(std::int64_t)
#undef MOEGRAD_INSTANTIATE

}  // namespace moegrad::kernels
