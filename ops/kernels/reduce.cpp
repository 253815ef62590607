// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/reduce.h"

#include <algorithm>
#include <array>

#include "framework/runtime/parallel_for.h"
#include "ops/kernels/add_row.h"
#include "ops/kernels/halving.h"
#include "ops/kernels/row_reduce.h"

namespace moegrad::kernels {
namespace {

// How many pieces of about 16384 elements' work parallel_for may take at a time.
std::int64_t grain_of(std::int64_t work) {
  return std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, work));
}

constexpr std::int64_t kStrip = 256;

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
void sum_columns(const T* x, T* y, std::int64_t outer, std::int64_t n, std::int64_t inner) {
  for_each_strip(outer, n, inner, [&](std::int64_t o, std::int64_t first, std::int64_t width) {
    std::array<std::array<T, kStrip>, kMostHalvings> levels;
    const auto at = [&](int level) { return levels[static_cast<std::size_t>(level)].data(); };
    const auto join = [&](int level) { add_row(at(level + 1), at(level), width); };
    for_each_part(
        0, n, kChainTerms, kHalvingUnit, 0, false,
        [&](std::int64_t begin, std::int64_t terms, int level, bool adds) {
          T* const to = at(adds ? level + 1 : level);
          std::fill_n(to, width, T(0));
          for (auto k = begin; k < begin + terms; ++k) {
            add_row(x + (o * n + k) * inner + first, to, width);
          }
          if (adds) join(level);
        },
        join);
    std::copy_n(at(0), width, y + o * inner + first);
  });
}

template <class T>
void sum_rows(const T* x, T* y, std::int64_t outer, std::int64_t n) {
  parallel_for(outer, grain_of(n), [&](std::int64_t begin, std::int64_t end) {
    for (auto o = begin; o < end; ++o) y[o] = static_cast<T>(halved_row_sum(x + o * n, n));
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

template void sum_columns(const float*, float*, std::int64_t, std::int64_t, std::int64_t);
template void sum_columns(const double*, double*, std::int64_t, std::int64_t, std::int64_t);

template void sum_rows(const float*, float*, std::int64_t, std::int64_t);
template void sum_rows(const double*, double*, std::int64_t, std::int64_t);

template void cumsum(const float*, bool, float*, std::int64_t, std::int64_t, std::int64_t);
template void cumsum(const double*, bool, double*, std::int64_t, std::int64_t, std::int64_t);

}  // namespace moegrad::kernels
