// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/topk_softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/kernels/exp.h"
#include "ops/kernels/for_rows.h"
#include "ops/kernels/row_reduce.h"
#include "ops/kernels/topk_row.h"

namespace moegrad::kernels {
template <class T>
std::int64_t first_not_finite(const T* x, std::int64_t count) {
  constexpr std::int64_t kBlock = 1024;  // checked without branches, so that the loop vectorises
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const auto end = std::min(count, begin + kBlock);
    int bad = 0;
    for (auto i = begin; i < end; ++i) {
      bad |= static_cast<int>(!(std::abs(x[i]) <= std::numeric_limits<T>::max()));
    }
    if (bad == 0) continue;
    return std::find_if_not(x + begin, x + end, [](T v) { return std::isfinite(v); }) - x;
  }
  return count;
}

template <class T>
void topk_rows(const T* x, std::int64_t* chosen, std::int64_t n, std::int64_t e, std::int64_t k) {
  for_rows(n, e, [=](std::int64_t r) { topk_row(x + r * e, chosen + r * k, e, k); });
}

template <class T>
void softmax_at_chosen(const T* x, const std::int64_t* chosen, T* w, std::int64_t n, std::int64_t e,
                       std::int64_t k) {
  for_rows(n, e, [=](std::int64_t r) {
    const T* row = x + r * e;
    const T largest = row_max(row, e);
    const T total = row_sum_of<T>(e, [=](std::int64_t i) { return exp(row[i] - largest); });
    for (auto slot = r * k; slot < (r + 1) * k; ++slot) {
      w[slot] = exp(row[chosen[slot]] - largest) / total;
    }
  });
}

template <class T>
void softmax_at_chosen_backward(const T* dw, const T* w, const T* x, const std::int64_t* chosen,
                                T* dx, std::int64_t n, std::int64_t e, std::int64_t k) {
  for_rows(n, e, [=](std::int64_t r) {
    const T* row = x + r * e;
    T* out = dx + r * e;
    const T largest = row_max(row, e);
    for (std::int64_t i = 0; i < e; ++i) out[i] = exp(row[i] - largest);
    const T scale = -row_dot(dw + r * k, w + r * k, k) / row_sum(out, e);
    for (std::int64_t i = 0; i < e; ++i) out[i] *= scale;
    for (auto slot = r * k; slot < (r + 1) * k; ++slot) out[chosen[slot]] += w[slot] * dw[slot];
  });
}

template <class T>
void chosen_softmax(const T* x, const std::int64_t* chosen, T* w, std::int64_t n, std::int64_t e,
                    std::int64_t k) {
  for_rows(n, e, [=](std::int64_t r) {
    T* out = w + r * k;
    for (std::int64_t j = 0; j < k; ++j) out[j] = x[r * e + chosen[r * k + j]];
    const T largest = row_max(out, k);
    for (std::int64_t j = 0; j < k; ++j) out[j] = exp(out[j] - largest);
    const T total = row_sum(out, k);
    for (std::int64_t j = 0; j < k; ++j) out[j] /= total;
  });
}

template <class T>
void chosen_softmax_backward(const T* dw, const T* w, const std::int64_t* chosen, T* dx,
                             std::int64_t n, std::int64_t e, std::int64_t k) {
  for_rows(n, e, [=](std::int64_t r) {
    T* out = dx + r * e;
    std::fill(out, out + e, T{0});
    const T dot = row_dot(dw + r * k, w + r * k, k);
    for (auto slot = r * k; slot < (r + 1) * k; ++slot) {
      out[chosen[slot]] = w[slot] * (dw[slot] - dot);
    }
  });
}

template std::int64_t first_not_finite(const float*, std::int64_t);
template std::int64_t first_not_finite(const double*, std::int64_t);
template void topk_rows(const float*, std::int64_t*, std::int64_t, std::int64_t, std::int64_t);
template void topk_rows(const double*, std::int64_t*, std::int64_t, std::int64_t, std::int64_t);
template void softmax_at_chosen(const float*, const std::int64_t*, float*, std::int64_t,
                                std::int64_t, std::int64_t);
template void softmax_at_chosen(const double*, const std::int64_t*, double*, std::int64_t,
                                std::int64_t, std::int64_t);
template void softmax_at_chosen_backward(const float*, const float*, const float*,
                                         const std::int64_t*, float*, std::int64_t, std::int64_t,
                                         std::int64_t);
template void softmax_at_chosen_backward(const double*, const double*, const double*,
                                         const std::int64_t*, double*, std::int64_t, std::int64_t,
                                         std::int64_t);
template void chosen_softmax(const float*, const std::int64_t*, float*, std::int64_t, std::int64_t,
                             std::int64_t);
template void chosen_softmax(const double*, const std::int64_t*, double*, std::int64_t,
                             std::int64_t, std::int64_t);
template void chosen_softmax_backward(const float*, const float*, const std::int64_t*, float*,
                                      std::int64_t, std::int64_t, std::int64_t);
template void chosen_softmax_backward(const double*, const double*, const std::int64_t*, double*,
                                      std::int64_t, std::int64_t, std::int64_t);

}  // namespace moegrad::kernels
