// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/reduce.h"

#include <algorithm>
#include <cmath>

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
void max(const T* x, T* y, std::int64_t* where, std::int64_t outer, std::int64_t n,
         std::int64_t inner) {
  parallel_for(outer, grain_of(n * inner), [&](std::int64_t begin, std::int64_t end) {
    for (auto o = begin; o < end; ++o) {
      T* best = y + o * inner;
      std::int64_t* at = where + o * inner;
      std::copy_n(x + o * n * inner, inner, best);
      std::fill_n(at, inner, 0);
      for (std::int64_t k = 1; k < n; ++k) {
        const T* in = x + (o * n + k) * inner;
        for (std::int64_t i = 0; i < inner; ++i) {
          if (in[i] > best[i] || (std::isnan(in[i]) && !std::isnan(best[i]))) {
            best[i] = in[i];
            at[i] = k;
          }
        }
      }
    }
  });
}

template <class T>
void max_backward(const T* dy, const std::int64_t* where, T* dx, std::int64_t outer, std::int64_t n,
                  std::int64_t inner) {
  parallel_for(outer, grain_of(n * inner), [&](std::int64_t begin, std::int64_t end) {
    std::fill(dx + begin * n * inner, dx + end * n * inner, T{0});
    for (auto o = begin; o < end; ++o) {
      for (std::int64_t i = 0; i < inner; ++i) {
        dx[(o * n + where[o * inner + i]) * inner + i] = dy[o * inner + i];
      }
    }
  });
}

template void sum(const float*, float*, std::int64_t, std::int64_t, std::int64_t);
template void sum(const double*, double*, std::int64_t, std::int64_t, std::int64_t);
template void max(const float*, float*, std::int64_t*, std::int64_t, std::int64_t, std::int64_t);
template void max(const double*, double*, std::int64_t*, std::int64_t, std::int64_t, std::int64_t);
template void max_backward(const float*, const std::int64_t*, float*, std::int64_t, std::int64_t,
                           std::int64_t);
template void max_backward(const double*, const std::int64_t*, double*, std::int64_t, std::int64_t,
                           std::int64_t);

}  // namespace moegrad::kernels
