// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/reduce.h"

#include <algorithm>

#include "framework/runtime/parallel_for.h"
#include "ops/kernels/row_reduce.h"

namespace moegrad::kernels {
namespace {

// How many pieces of about 16384 elements' work parallel_for may take at a time.
std::int64_t grain_of(std::int64_t work) {
  return std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, work));
}

}  // namespace

template <class T>
void sum(const T* x, T* y, std::int64_t outer, std::int64_t n, std::int64_t inner) {
  if (inner == 1) {
    parallel_for(outer, grain_of(n), [&](std::int64_t begin, std::int64_t end) {
      for (auto o = begin; o < end; ++o) y[o] = row_sum(x + o * n, n);
    });
    return;
  }
  constexpr std::int64_t kWidth = 256;
  const auto blocks = (inner + kWidth - 1) / kWidth;
  parallel_for(outer * blocks, grain_of(n * std::min(inner, kWidth)),
               [&](std::int64_t begin, std::int64_t end) {
                 for (auto piece = begin; piece < end; ++piece) {
                   const auto o = piece / blocks;
                   const auto first = piece % blocks * kWidth;
                   const auto width = std::min(kWidth, inner - first);
                   T* out = y + o * inner + first;
                   std::fill(out, out + width, T{0});
                   for (std::int64_t k = 0; k < n; ++k) {
                     const T* in = x + (o * n + k) * inner + first;
                     for (std::int64_t i = 0; i < width; ++i) out[i] += in[i];
                   }
                 }
               });
}

template <class T>
void cumsum(const T* x, bool reverse, T* y, std::int64_t outer, std::int64_t n,
            std::int64_t inner) {
  parallel_for(outer, grain_of(n * inner), [&](std::int64_t begin, std::int64_t end) {
    for (auto o = begin; o < end; ++o) {
      const T* in = x + o * n * inner;
      T* out = y + o * n * inner;
      for (std::int64_t k = 0; k < n; ++k) {
        const auto row = (reverse ? n - 1 - k : k) * inner;
        const auto before = reverse ? row + inner : row - inner;
        for (std::int64_t i = 0; i < inner; ++i) {
          out[row + i] = k == 0 ? in[row + i] : out[before + i] + in[row + i];
        }
      }
    }
  });
}

template void sum(const float*, float*, std::int64_t, std::int64_t, std::int64_t);
template void sum(const double*, double*, std::int64_t, std::int64_t, std::int64_t);

template void cumsum(const float*, bool, float*, std::int64_t, std::int64_t, std::int64_t);
template void cumsum(const double*, bool, double*, std::int64_t, std::int64_t, std::int64_t);

}  // namespace moegrad::kernels
