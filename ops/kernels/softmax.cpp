// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/softmax.h"

#include "ops/kernels/exp.h"
#include "ops/kernels/for_rows.h"
#include "ops/kernels/row_reduce.h"

namespace moegrad::kernels {
namespace {

// __restrict, because the compiler cannot see that the rows do not overlap.
template <class T>
void exp_row(const T* __restrict x, T shift, T* __restrict y, std::int64_t d) {
  for (std::int64_t i = 0; i < d; ++i) y[i] = exp(x[i] - shift);
}

}  // namespace

template <class T>
void softmax(const T* x, T* y, std::int64_t n, std::int64_t d) {
  for_rows(n, d, [&](std::int64_t r) {
    const auto at = r * d;
    const T* in = x + at;
    T* out = y + at;
    const T largest = row_max(in, d);
    exp_row(in, largest, out, d);
    const T scale = T{1} / row_sum(out, d);
    for (std::int64_t i = 0; i < d; ++i) out[i] *= scale;
  });
}

template <class T>
void softmax_backward(const T* dy, const T* y, T* dx, std::int64_t n, std::int64_t d) {
  for_rows(n, d, [&](std::int64_t r) {
    const auto at = r * d;
    const T dot = row_dot(dy + at, y + at, d);
    for (std::int64_t i = 0; i < d; ++i) dx[at + i] = y[at + i] * (dy[at + i] - dot);
  });
}

template <class T>
void log_softmax(const T* x, T* y, std::int64_t n, std::int64_t d) {
  for_rows(n, d, [&](std::int64_t r) {
    const auto at = r * d;
    const auto [largest, log_sum] = row_logsumexp_parts(x + at, d);
    for (std::int64_t i = 0; i < d; ++i) y[at + i] = (x[at + i] - largest) - log_sum;
  });
}

template <class T>
void log_softmax_backward(const T* dy, const T* y, T* dx, std::int64_t n, std::int64_t d) {
  for_rows(n, d, [&](std::int64_t r) {
    const auto at = r * d;
    const T total = static_cast<T>(halved_row_sum(dy + at, d));
    for (std::int64_t i = 0; i < d; ++i) dx[at + i] = dy[at + i] - exp(y[at + i]) * total;
  });
}

template void softmax(const float*, float*, std::int64_t, std::int64_t);
template void softmax(const double*, double*, std::int64_t, std::int64_t);
template void softmax_backward(const float*, const float*, float*, std::int64_t, std::int64_t);
template void softmax_backward(const double*, const double*, double*, std::int64_t, std::int64_t);
template void log_softmax(const float*, float*, std::int64_t, std::int64_t);
template void log_softmax(const double*, double*, std::int64_t, std::int64_t);
template void log_softmax_backward(const float*, const float*, float*, std::int64_t, std::int64_t);
template void log_softmax_backward(const double*, const double*, double*, std::int64_t,
                                   std::int64_t);

}  // namespace moegrad::kernels
