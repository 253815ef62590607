// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/layer_norm.h"

#include <cmath>

#include "ops/kernels/for_rows.h"
#include "ops/kernels/row_reduce.h"

namespace moegrad::kernels {

// y holds what is summed next: the row reductions read memory. A mean that is rounded to T is far
// off for rows that are far from zero, so what is left after it is subtracted, too.
template <class T>
void layer_norm(const T* x, const T* w, const T* b, T* y, T* mean, T* rstd, std::int64_t rows,
                std::int64_t d, T eps) {
  for_rows(rows, d, [=](std::int64_t r) {
    const T* in = x + r * d;
    T* out = y + r * d;
    const T rounded = row_sum(in, d) / static_cast<T>(d);
    for (std::int64_t i = 0; i < d; ++i) out[i] = in[i] - rounded;
    const T rest = row_sum(out, d) / static_cast<T>(d);
    for (std::int64_t i = 0; i < d; ++i) out[i] -= rest;
    mean[2 * r] = rounded;
    mean[2 * r + 1] = rest;
    rstd[r] = T{1} / std::sqrt(row_dot(out, out, d) / static_cast<T>(d) + eps);
    for (std::int64_t i = 0; i < d; ++i) out[i] *= rstd[r];
    if (w != nullptr) {
      for (std::int64_t i = 0; i < d; ++i) out[i] *= w[i];
    }
    if (b != nullptr) {
      for (std::int64_t i = 0; i < d; ++i) out[i] += b[i];
    }
  });
}

template <class T>
void layer_norm_backward(const T* dy, const T* x, const T* w, const T* mean, const T* rstd, T* dx,
                         T* scaled, std::int64_t rows, std::int64_t d) {
  for_rows(rows, 2 * d, [=](std::int64_t r) {
    const T *in = x + r * d, *grad = dy + r * d;
    const auto normed = [&](std::int64_t i) {
      return (in[i] - mean[2 * r] - mean[2 * r + 1]) * rstd[r];
    };
    if (scaled != nullptr) {
      for (std::int64_t i = 0; i < d; ++i) scaled[r * d + i] = grad[i] * normed(i);
    }
    if (dx == nullptr) return;
    T* out = dx + r * d;
    for (std::int64_t i = 0; i < d; ++i) out[i] = w == nullptr ? grad[i] : grad[i] * w[i];
    const T average = row_sum(out, d) / static_cast<T>(d);
    const T along =
        row_sum_of<T>(d, [&](std::int64_t i) { return out[i] * normed(i); }) / static_cast<T>(d);
    for (std::int64_t i = 0; i < d; ++i) out[i] = (out[i] - average - normed(i) * along) * rstd[r];
  });
}

#define MOEGRAD_INSTANTIATE(T)                                                                   \
  template void layer_norm(const T*, const T*, const T*, T*, T*, T*, std::int64_t, std::int64_t, \
                           T);                                                                   \
  template void layer_norm_backward(const T*, const T*, const T*, const T*, const T*, T*, T*,    \
                                    std::int64_t, std::int64_t);
MOEGRAD_INSTANTIATE(float)
MOEGRAD_INSTANTIATE(double)
#undef MOEGRAD_INSTANTIATE

}  // namespace moegrad::kernels
