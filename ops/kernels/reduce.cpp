// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/reduce.h"

#include <algorithm>
#include <array>

#include "framework/runtime/parallel_for.h"
#include "ops/kernels/row_reduce.h"

namespace moegrad::kernels {
namespace {

// How many pieces of about 16384 elements' work parallel_for may take at a time.
std::int64_t grain_of(std::int64_t work) {
  return std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, work));
}

constexpr std::int64_t kStrip = 256;
// As many terms meet in one number as in a lane of row_sum.
constexpr std::int64_t kRowsOfSum = kSumBlock / kLanes;

// visit(o, first, width) for strips of at most kStrip columns of [outer, n, inner].
template <class Visit>
void for_each_strip(std::int64_t outer, std::int64_t n, std::int64_t inner, const Visit& visit) {
  const auto strips = (inner + kStrip - 1) / kStrip;
  parallel_for(outer * strips, grain_of(n * std::min(inner, kStrip)),
               [&](std::int64_t begin, std::int64_t end) {
                 for (auto piece = begin; piece < end; ++piece) {
                   const auto first = piece % strips * kStrip;
                   visit(piece / strips, first, std::min(kStrip, inner - first));
                 }
               });
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
  for_each_strip(outer, n, inner, [&](std::int64_t o, std::int64_t first, std::int64_t width) {
    std::array<double, kStrip> totals{};
    for (std::int64_t begin = 0; begin < n; begin += kRowsOfSum) {
      std::array<T, kStrip> sums{};
      const auto end = std::min(n, begin + kRowsOfSum);
      for (auto k = begin; k < end; ++k) {
        const T* in = x + (o * n + k) * inner + first;
        for (std::int64_t i = 0; i < width; ++i) sums[static_cast<std::size_t>(i)] += in[i];
      }
      for (std::size_t i = 0; i < static_cast<std::size_t>(width); ++i) {
        totals[i] += static_cast<double>(sums[i]);
      }
    }
    T* out = y + o * inner + first;
    for (std::int64_t i = 0; i < width; ++i) {
      out[i] = static_cast<T>(totals[static_cast<std::size_t>(i)]);
    }
  });
}

template <class T>
void cumsum(const T* x, bool reverse, T* y, std::int64_t outer, std::int64_t n,
            std::int64_t inner) {
  for_each_strip(outer, n, inner, [&](std::int64_t o, std::int64_t first, std::int64_t width) {
    std::array<double, kStrip> totals{};
    for (std::int64_t k = 0; k < n; ++k) {
      const auto at = (o * n + (reverse ? n - 1 - k : k)) * inner + first;
      for (std::int64_t i = 0; i < width; ++i) {
        auto& total = totals[static_cast<std::size_t>(i)];
        total += static_cast<double>(x[at + i]);
        y[at + i] = static_cast<T>(total);
      }
    }
  });
}

template void sum(const float*, float*, std::int64_t, std::int64_t, std::int64_t);
template void sum(const double*, double*, std::int64_t, std::int64_t, std::int64_t);

template void cumsum(const float*, bool, float*, std::int64_t, std::int64_t, std::int64_t);
template void cumsum(const double*, bool, double*, std::int64_t, std::int64_t, std::int64_t);

}  // namespace moegrad::kernels
