// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/aux_loss.h"

#include <algorithm>

#include "framework/runtime/math/elementary.h"
#include "ops/kernels/exp.h"
#include "ops/kernels/for_rows.h"
#include "ops/kernels/row_reduce.h"

namespace moegrad::kernels {
template <class T>
void expected_load(const T* x, const T* load, const T* mask, T* y, std::int64_t n, std::int64_t e) {
  for_rows(n, e, [=](std::int64_t r) {
    const T weight = mask != nullptr ? mask[r] : T{1};
    y[r] = T{0};
    if (weight == T{0} || e == 0) return;
    const T* row = x + r * e;
    const T largest = row_max(row, e);
    const T total = row_sum_of<T>(e, [=](std::int64_t i) { return exp(row[i] - largest); });
    const T dot = row_sum_of<T>(e, [=](std::int64_t i) { return load[i] * exp(row[i] - largest); });
    y[r] = weight * (dot / total);
  });
}

template <class T>
void expected_load_backward(T scale, const T* x, const T* load, const T* mask, T* dx,
                            std::int64_t n, std::int64_t e) {
  for_rows(n, e, [=](std::int64_t r) {
    const T weight = mask != nullptr ? mask[r] : T{1};
    const T* row = x + r * e;
    T* out = dx + r * e;
    if (weight == T{0}) {
      std::fill(out, out + e, T{0});
      return;
    }
    const T largest = row_max(row, e);
    for (std::int64_t i = 0; i < e; ++i) out[i] = exp(row[i] - largest);
    const T total = row_sum(out, e);
    const T expected = row_dot(load, out, e) / total;
    const T factor = scale * weight / total;
    for (std::int64_t i = 0; i < e; ++i) out[i] *= factor * (load[i] - expected);
  });
}

// With z_i = x_i - max x and Z = sum_i exp(z_i):
//     -sum_i p_i log p_i = log Z - (sum_i z_i exp(z_i)) / Z
template <class T>
void softmax_entropy(const T* x, T* y, std::int64_t n, std::int64_t e) {
  for_rows(n, e, [=](std::int64_t r) {
    const T* row = x + r * e;
    const T largest = row_max(row, e);
    const T total = row_sum_of<T>(e, [=](std::int64_t i) { return exp(row[i] - largest); });
    const T dot = row_sum_of<T>(e, [=](std::int64_t i) {
      const T z = row[i] - largest, weight = exp(z);
      return weight == T{0} ? T{0} : z * weight;  // z may be -infinity
    });
    y[r] = math::log(total) - dot / total;
  });
}

template <class T>
void logsumexp(const T* x, T* lse, std::int64_t n, std::int64_t e) {
  for_rows(n, e, [=](std::int64_t r) { lse[r] = row_logsumexp(x + r * e, e); });
}

template <class T>
void squared_logsumexp_backward(T scale, const T* x, const T* lse, T* dx, std::int64_t n,
                                std::int64_t e) {
  for_rows(n, e, [=](std::int64_t r) {
    const T* row = x + r * e;
    T* out = dx + r * e;
    const T shift = lse[r], factor = scale * lse[r];
    for (std::int64_t i = 0; i < e; ++i) out[i] = factor * exp(row[i] - shift);
  });
}

template void expected_load(const float*, const float*, const float*, float*, std::int64_t,
                            std::int64_t);
template void expected_load(const double*, const double*, const double*, double*, std::int64_t,
                            std::int64_t);
template void expected_load_backward(float, const float*, const float*, const float*, float*,
                                     std::int64_t, std::int64_t);
template void expected_load_backward(double, const double*, const double*, const double*, double*,
                                     std::int64_t, std::int64_t);
template void softmax_entropy(const float*, float*, std::int64_t, std::int64_t);
template void softmax_entropy(const double*, double*, std::int64_t, std::int64_t);
template void logsumexp(const float*, float*, std::int64_t, std::int64_t);
template void logsumexp(const double*, double*, std::int64_t, std::int64_t);
template void squared_logsumexp_backward(float, const float*, const float*, float*, std::int64_t,
                                         std::int64_t);
template void squared_logsumexp_backward(double, const double*, const double*, double*,
                                         std::int64_t, std::int64_t);

}  // namespace moegrad::kernels
