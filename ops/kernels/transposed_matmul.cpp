// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/transposed_matmul.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>

#include "framework/tensor/layout.h"
#include "ops/kernels/block_sums.h"
#include "ops/kernels/halving.h"
#include "ops/kernels/transpose_8x8.h"

namespace moegrad::kernels {
namespace {

// The longest part of the reduction that is walked at a time. A panel of 24 KB leaves
// room in the first cache level for what is read of B meanwhile.
template <class T>
constexpr std::int64_t kDepth = 1536 / sizeof(T);

constexpr auto kGroup = kTransposedGroup;

// Rows of A are packed in panels of two units; the last panel takes the rest, up to three units. A
// panel of eight columns would keep at most two thirds of the multiply-adds busy.
constexpr std::int64_t kLargestUnit = 16, kWidestPanel = kMostPanelUnits * kLargestUnit;

class PanelCuts {
 public:
  PanelCuts(std::int64_t rows, std::int64_t unit)
      : rows_(rows),
        unit_(unit),
        count_(std::max<std::int64_t>(1, (rows + unit - 1) / (2 * unit))) {}
  std::int64_t count() const { return count_; }
  std::int64_t begin(std::int64_t i) const { return i * 2 * unit_; }
  std::int64_t rows(std::int64_t i) const { return i + 1 < count_ ? 2 * unit_ : rows_ - begin(i); }
  std::int64_t units(std::int64_t i) const { return (rows(i) + unit_ - 1) / unit_; }
  std::int64_t width(std::int64_t i) const { return units(i) * unit_; }

 private:
  std::int64_t rows_, unit_, count_;
};

template <class T>
struct TransposedScratch {
  static constexpr auto kMostRows = (kBlockRows + kLargestUnit - 1) / kLargestUnit * kLargestUnit;
  alignas(64) std::array<T, kMostRows * kDepth<T>> panels;
  alignas(64) std::array<T, kGroup * kWidestPanel> tile;  // of C^T, [kGroup, width]
};

template <class T>
TransposedScratch<T>& transposed_scratch() {
  thread_local const auto block =
      std::make_unique<TransposedScratch<T>>();  // all of it touched by zeros
  return *block;
}

// panel[p, r] = a[r * stride + p] for p < k, r < width, in a panel [k, width]. Rows past the `rows`
// that exist repeat the last row; nobody reads their results.
template <class T>
void pack_panel(const T* a, std::int64_t stride, std::int64_t rows, std::int64_t k,
                std::int64_t width, T* panel) {
  const auto row = [&](std::int64_t r) { return a + std::min(r, rows - 1) * stride; };
  const auto whole = k / 8 * 8;
  for (std::int64_t r0 = 0; r0 < width; r0 += 8) {
    const std::array<const T*, 8> from = {row(r0),     row(r0 + 1), row(r0 + 2), row(r0 + 3),
                                          row(r0 + 4), row(r0 + 5), row(r0 + 6), row(r0 + 7)};
    for (std::int64_t p = 0; p < whole; p += 8) {
      transpose_8x8([&](int r) { return from[static_cast<std::size_t>(r)] + p; },
                    panel + p * width + r0, width);
    }
    for (auto p = whole; p < k; ++p) {
      T* to = panel + p * width + r0;
      for (const T* each : from) *to++ = each[p];
    }
  }
}

// to[i * to_stride + j] = from[j * from_stride + i] for i < rows, j < columns.
template <class T>
void transpose(const T* from, std::int64_t from_stride, T* to, std::int64_t to_stride,
               std::int64_t rows, std::int64_t columns) {
  for (std::int64_t i = 0; i < rows; i += 8) {
    for (std::int64_t j = 0; j < columns; j += 8) {
      if (i + 8 <= rows && j + 8 <= columns) {
        transpose_8x8([&](int r) { return from + (j + r) * from_stride + i; },
                      to + i * to_stride + j, to_stride);
        continue;
      }
      for (auto y = i; y < std::min(rows, i + 8); ++y) {
        for (auto x = j; x < std::min(columns, j + 8); ++x) {
          to[y * to_stride + x] = from[x * from_stride + y];
        }
      }
    }
  }
}

}  // namespace

template <class T>
void transposed_matmul_block(const MatmulProblem<T>& problem, std::int64_t i0, std::int64_t rows,
                             std::int64_t j0, std::int64_t columns,
                             const TransposedLoops<T>& loops) {
  const auto& a = problem.a;
  const auto& b = problem.b;
  const auto block_step = b.stride * kNzBlock;
  auto& buffers = transposed_scratch<T>();
  T* const tile = buffers.tile.data();
  const PanelCuts cuts(rows, loops.unit);
  walk_reduction(problem, i0, rows, j0, columns, kDepth<T>,
                 [&](std::int64_t k0, std::int64_t depth, const auto& to, bool adds) {
                   const auto chains = Chains::of(depth);
                   const auto panel = [&](std::int64_t i) {
                     return buffers.panels.data() + cuts.begin(i) * depth;
                   };
                   for (std::int64_t i = 0; i < cuts.count(); ++i) {
                     pack_panel(a.data + (i0 + cuts.begin(i)) * a.row_stride + k0, a.row_stride,
                                cuts.rows(i), depth, cuts.width(i), panel(i));
                   }
                   for (std::int64_t j = 0; j < columns; j += kGroup) {
                     const auto group = std::min(kGroup, columns - j);
                     const T* const stored =
                         b.data + (k0 / kNzBlock * b.stride + j0 + j) * kNzBlock;
                     for (std::int64_t i = 0; i < cuts.count(); ++i) {
                       const auto height = cuts.rows(i), width = cuts.width(i);
                       T* const c = to.data + cuts.begin(i) * to.stride + j;
                       if (adds) transpose(c, to.stride, tile, width, group, height);
                       // Rows of B^T past the last are zero padding.
                       loops.by_units[cuts.units(i) - 1](stored, block_step, panel(i), chains, tile,
                                                         round_up(group, kNzBlock), adds);
                       transpose(tile, width, c, to.stride, height, group);
                     }
                   }
                 });
}

template void transposed_matmul_block<float>(const MatmulProblem<float>&, std::int64_t,
                                             std::int64_t, std::int64_t, std::int64_t,
                                             const TransposedLoops<float>&);
template void transposed_matmul_block<double>(const MatmulProblem<double>&, std::int64_t,
                                              std::int64_t, std::int64_t, std::int64_t,
                                              const TransposedLoops<double>&);

}  // namespace moegrad::kernels
