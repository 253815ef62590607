// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/gather_rows.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "framework/runtime/parallel_for.h"
#include "framework/tensor/dtype.h"
#include "ops/kernels/add_row.h"
#include "ops/kernels/halving.h"

namespace moegrad::kernels {
namespace {

constexpr std::int64_t kSharedColumns = 256;  // of a thread's share

// Some columns of the sum over the given positions, all of which are in [begin, begin + terms).
template <class Row, class T>
class SumOfPositions {
 public:
  SumOfPositions(const Row* rows, std::int64_t width, std::int64_t first, std::int64_t columns)
      : rows_(rows), width_(width), first_(first), columns_(columns) {}

  // Right halves wait in level `level`; at least one position.
  void sum(std::int64_t begin, std::int64_t terms, std::span<const std::int64_t> positions, T* to,
           std::size_t level = 0) {
    if (terms <= kChainTerms) {
      std::fill_n(to, columns_, T(0));
      for (const auto i : positions) add_row(rows_ + i * width_ + first_, to, columns_);
      return;
    }
    const auto left = left_half(terms), middle = begin + left;
    const auto cut = std::ranges::lower_bound(positions, middle) - positions.begin();
    const auto in_left = positions.first(static_cast<std::size_t>(cut));
    const auto in_right = positions.subspan(static_cast<std::size_t>(cut));
    if (in_right.empty()) return sum(begin, left, in_left, to, level);
    if (in_left.empty()) return sum(middle, terms - left, in_right, to, level);
    sum(begin, left, in_left, to, level);
    T* const right = levels_[level].data();
    sum(middle, terms - left, in_right, right, level + 1);
    add_row(right, to, columns_);
  }

 private:
  const Row* rows_;
  std::int64_t width_, first_, columns_;
  std::array<std::array<T, kSharedColumns>, kMostHalvings> levels_;
};

}  // namespace

void gather_rows(const std::byte* table, const std::int64_t* indices, std::byte* out,
                 std::int64_t n, std::int64_t row_bytes) {
  if (row_bytes == 0) return;
  const auto grain = std::max<std::int64_t>(1, 65536 / row_bytes);
  parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = begin; i < end; ++i) {
      std::memcpy(out + i * row_bytes, table + indices[i] * row_bytes,
                  static_cast<std::size_t>(row_bytes));
    }
  });
}

// Threads divide the columns, not the rows, so that additions into an element keep the order of i.
template <class T>
void scatter_add_rows(const T* rows, const std::int64_t* indices, T* table, std::int64_t n,
                      std::int64_t width) {
  parallel_for(width, kSharedColumns, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = 0; i < n; ++i) {
      add_row(rows + i * width + begin, table + indices[i] * width + begin, end - begin);
    }
  });
}

template <class Row, class T>
void sum_rows_by_index(const Row* rows, std::int64_t n, const std::int64_t* indices,
                       std::span<const std::int64_t> by_index, std::int64_t first, T* table,
                       std::int64_t width) {
  parallel_for(width, kSharedColumns, [&](std::int64_t begin, std::int64_t end) {
    SumOfPositions<Row, T> sums(rows, width, begin, end - begin);
    for (auto run = by_index.begin(); run != by_index.end();) {
      const auto index = indices[*run];
      const auto next =
          std::find_if(run, by_index.end(), [&](std::int64_t i) { return indices[i] != index; });
      sums.sum(0, n, {run, next}, table + (index - first) * width + begin);
      run = next;
    }
  });
}

template void sum_rows_by_index(const float*, std::int64_t, const std::int64_t*,
                                std::span<const std::int64_t>, std::int64_t, float*, std::int64_t);
template void sum_rows_by_index(const BFloat16*, std::int64_t, const std::int64_t*,
                                std::span<const std::int64_t>, std::int64_t, float*, std::int64_t);
template void sum_rows_by_index(const double*, std::int64_t, const std::int64_t*,
                                std::span<const std::int64_t>, std::int64_t, double*, std::int64_t);
template void scatter_add_rows(const float*, const std::int64_t*, float*, std::int64_t,
                               std::int64_t);
template void scatter_add_rows(const double*, const std::int64_t*, double*, std::int64_t,
                               std::int64_t);

}  // namespace moegrad::kernels
