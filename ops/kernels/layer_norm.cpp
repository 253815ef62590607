// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/layer_norm.h"

#include <cmath>

#include "ops/kernels/for_rows.h"
#include "ops/kernels/row_reduce.h"

namespace moegrad::kernels {

// y holds what is summed next: the row reductions read memory.
template <class T>
void layer_norm(const T* x, const T* w, const T* b, T* y, T* mean, T* rstd, std::int64_t rows,
                std::int64_t d, T eps) {
  for_rows(rows, d, [=](std::int64_t r) {
    const T* in = x + r * d;
    T* out = y + r * d;
    mean[r] = row_sum(in, d) / static_cast<T>(d);
    for (std::int64_t i = 0; i < d; ++i) out[i] = in[i] - mean[r];
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
    const auto normed = [&](std::int64_t i) { return (in[i] - mean[r]) * rstd[r]; };
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
