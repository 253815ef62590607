// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/routing.h"

#include <algorithm>
#include <array>
#include <type_traits>

#include "framework/runtime/parallel_for.h"
#include "framework/tensor/dtype.h"
#include "ops/kernels/add_row.h"

namespace moegrad::kernels {
namespace {

template <class Body>
void for_copied_rows(std::int64_t n, std::int64_t work_per_row, const Body& body) {
  const auto grain = std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, work_per_row));
  parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = begin; i < end; ++i) body(i);
  });
}

// out = the sum of the k rows from row_at(slot) on, in ascending order of slots.
template <class T, class RowAt>
void add_rows(std::int64_t slot, std::int64_t k, const RowAt& row_at, T* out, std::int64_t h) {
  using Sum = std::conditional_t<std::is_same_v<T, BFloat16>, float, T>;
  constexpr std::int64_t kColumns = 256;
  std::array<Sum, kColumns> sum;
  for (std::int64_t begin = 0; begin < h; begin += kColumns) {
    const auto n = std::min(kColumns, h - begin);
    if (k == 0) std::fill_n(sum.data(), n, Sum{0});
    for (std::int64_t j = 0; j < k; ++j) {
      const T* in = row_at(slot + j) + begin;
      if (j == 0) {
        for (std::int64_t i = 0; i < n; ++i) sum[static_cast<std::size_t>(i)] = Sum(in[i]);
      } else {
        add_row(in, sum.data(), n);
      }
    }
    for (std::int64_t i = 0; i < n; ++i) out[begin + i] = T(sum[static_cast<std::size_t>(i)]);
  }
}

}  // namespace

template <class T>
void spread_tokens(const T* x, const std::int64_t* slot_of_row, T* rows, std::int64_t n,
                   std::int64_t k, std::int64_t h) {
  for_copied_rows(n, h, [=](std::int64_t r) {
    const T* in = x + slot_of_row[r] / k * h;
    std::copy(in, in + h, rows + r * h);
  });
}

template <class T>
void collect_tokens(const T* rows, const std::int64_t* row_of_slot, T* y, std::int64_t tokens,
                    std::int64_t k, std::int64_t h) {
  const auto row_at = [=](std::int64_t slot) { return rows + row_of_slot[slot] * h; };
  for_copied_rows(tokens, k * h, [=](std::int64_t t) { add_rows(t * k, k, row_at, y + t * h, h); });
}

template <class T>
void collect_rows(std::span<const T* const> rows, const std::int64_t* row_of_slot, T* y,
                  std::int64_t tokens, std::int64_t k, std::int64_t h) {
  const auto row_at = [=](std::int64_t slot) {
    return rows[static_cast<std::size_t>(row_of_slot[slot])];
  };
  for (std::int64_t t = 0; t < tokens; ++t) add_rows(t * k, k, row_at, y + t * h, h);
}

template void spread_tokens(const float*, const std::int64_t*, float*, std::int64_t, std::int64_t,
                            std::int64_t);
template void spread_tokens(const double*, const std::int64_t*, double*, std::int64_t, std::int64_t,
                            std::int64_t);
template void spread_tokens(const BFloat16*, const std::int64_t*, BFloat16*, std::int64_t,
                            std::int64_t, std::int64_t);
template void collect_tokens(const float*, const std::int64_t*, float*, std::int64_t, std::int64_t,
                             std::int64_t);
template void collect_tokens(const double*, const std::int64_t*, double*, std::int64_t,
                             std::int64_t, std::int64_t);
template void collect_tokens(const BFloat16*, const std::int64_t*, BFloat16*, std::int64_t,
                             std::int64_t, std::int64_t);

template void collect_rows(std::span<const float* const>, const std::int64_t*, float*, std::int64_t,
                           std::int64_t, std::int64_t);
template void collect_rows(std::span<const double* const>, const std::int64_t*, double*,
                           std::int64_t, std::int64_t, std::int64_t);
template void collect_rows(std::span<const BFloat16* const>, const std::int64_t*, BFloat16*,
                           std::int64_t, std::int64_t, std::int64_t);

}  // namespace moegrad::kernels
