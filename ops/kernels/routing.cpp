// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/routing.h"

#include <algorithm>

#include "framework/runtime/parallel_for.h"
#include "ops/kernels/row_reduce.h"

namespace moegrad::kernels {
namespace {

template <class Body>
void for_rows(std::int64_t n, std::int64_t work_per_row, const Body& body) {
  const auto grain = std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, work_per_row));
  parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = begin; i < end; ++i) body(i);
  });
}

template <class T>
void scale_row(T weight, const T* __restrict in, T* __restrict out, std::int64_t h) {
  for (std::int64_t i = 0; i < h; ++i) out[i] = weight * in[i];
}

template <class T>
void add_scaled_row(T weight, const T* __restrict in, T* __restrict out, std::int64_t h) {
  for (std::int64_t i = 0; i < h; ++i) out[i] += weight * in[i];
}

}  // namespace

template <class T>
void spread_tokens(const T* x, const T* weights, const std::int64_t* slot_of_row, T* rows,
                   std::int64_t n, std::int64_t k, std::int64_t h) {
  for_rows(n, h, [=](std::int64_t r) {
    const auto slot = slot_of_row[r];
    const T* in = x + slot / k * h;
    if (weights != nullptr) {
      scale_row(weights[slot], in, rows + r * h, h);
    } else {
      std::copy(in, in + h, rows + r * h);
    }
  });
}

template <class T>
void collect_tokens(const T* rows, const T* weights, const std::int64_t* row_of_slot, T* y,
                    std::int64_t tokens, std::int64_t k, std::int64_t h) {
  for_rows(tokens, k * h, [=](std::int64_t t) {
    T* out = y + t * h;
    if (k == 0) std::fill(out, out + h, T{0});
    for (auto slot = t * k; slot < (t + 1) * k; ++slot) {
      const T weight = weights != nullptr ? weights[slot] : T{1};
      const T* in = rows + row_of_slot[slot] * h;
      if (slot == t * k) {
        scale_row(weight, in, out, h);
      } else {
        add_scaled_row(weight, in, out, h);
      }
    }
  });
}

template <class T>
void slot_dots(const T* rows, const T* x, const std::int64_t* row_of_slot, T* dots,
               std::int64_t tokens, std::int64_t k, std::int64_t h) {
  for_rows(tokens, k * h, [=](std::int64_t t) {
    for (auto slot = t * k; slot < (t + 1) * k; ++slot) {
      dots[slot] = row_dot(rows + row_of_slot[slot] * h, x + t * h, h);
    }
  });
}

template void spread_tokens(const float*, const float*, const std::int64_t*, float*, std::int64_t,
                            std::int64_t, std::int64_t);
template void spread_tokens(const double*, const double*, const std::int64_t*, double*,
                            std::int64_t, std::int64_t, std::int64_t);
template void collect_tokens(const float*, const float*, const std::int64_t*, float*, std::int64_t,
                             std::int64_t, std::int64_t);
template void collect_tokens(const double*, const double*, const std::int64_t*, double*,
                             std::int64_t, std::int64_t, std::int64_t);
template void slot_dots(const float*, const float*, const std::int64_t*, float*, std::int64_t,
                        std::int64_t, std::int64_t);
template void slot_dots(const double*, const double*, const std::int64_t*, double*, std::int64_t,
                        std::int64_t, std::int64_t);

}  // namespace moegrad::kernels
