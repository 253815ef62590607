// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/matmul_kernel.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <memory>

#include "framework/tensor/layout.h"
#include "ops/kernels/block_sums.h"
#include "ops/kernels/even_cuts.h"
#include "ops/kernels/few_rows_matmul.h"
#include "ops/kernels/few_steps_matmul.h"
#include "ops/kernels/halving.h"
#include "ops/kernels/matmul_tile.h"
#include "ops/kernels/product_loops.h"
#include "ops/kernels/transposed_matmul.h"

namespace moegrad::kernels {
namespace {

constexpr std::int64_t kLine = 64;  // bytes of a cache line

// The longest part of the reduction that is walked at a time: panels of 32 KB. Panels of half that
// size would stay in the first cache level, but then C is read and written twice as often.
// Measured, the longer walk is faster by a few hundredths.
template <class T>
constexpr std::int64_t kCacheDepth = 2048 / sizeof(T);

constexpr std::int64_t kPanelsOfGroup = kGroupColumns / kNzBlock;

// A single strip of up to this many rows uses a panel faster than the next ones can be fetched.
constexpr std::int64_t kWaitingRows = 4;

// Reductions of up to kCacheDepth / kShortGroups steps go strip by strip, through groups that are
// kShortGroups times as wide.
constexpr std::int64_t kShortGroups = 8;
template <class T>
constexpr std::int64_t kShortDepth = kCacheDepth<T> / kShortGroups;

// A strip of six or eight rows takes up to 16 KB. One more cache line keeps the same step of all
// strips out of one set of the first cache level while the strips are packed side by side.
template <class T>
constexpr std::int64_t strip_size(std::int64_t rows, std::int64_t depth) {
  return rows * depth + kLine / std::int64_t{sizeof(T)};
}
constexpr std::int64_t kFewestStripRows = 2;
template <class T>
constexpr std::int64_t kStripsSize =
    (kBlockRows + kMostTileRows) * kCacheDepth<T> + kLine / std::int64_t{sizeof(T)} *
                                                        (kBlockRows / kFewestStripRows);

template <class T>
struct Scratch {
  alignas(64) std::array<T, kGroupColumns * kCacheDepth<T>> group;
  alignas(64) std::array<T, kStripsSize<T>> strips;
};

template <class T>
Scratch<T>& scratch() {
  thread_local const auto block = std::make_unique<Scratch<T>>();  // all of it touched by zeros
  return *block;
}

// Prefetches part `part` of the NZ panels that begin with `panel`, for `depth` steps. A part is as
// long as a tile can prefetch: a fraction of a panel, or one panel and the next ones.
template <class T>
Ahead part_of_panels(const RightOperand<T>& b, const T* panel, std::int64_t depth,
                     std::int64_t part, std::int64_t parts_of_panel, std::int64_t panels_of_part) {
  const auto apart = b.stride * kNzBlock;
  const auto bytes = apart * std::int64_t{sizeof(T)};
  return {.line = panel + part / parts_of_panel * panels_of_part * apart +
                  part % parts_of_panel * (depth / parts_of_panel) * kNzBlock,
          .step = kLine,
          .jump = kLine,
          .second = bytes,
          .third = panels_of_part > 2 ? 2 * bytes : 0};
}

// Prefetches part `part` of `parts` of the data from which the group of columns from j on will be
// packed, for the depth steps from k0 on. If B is stored as rows, that is runs of cache lines;
// columns are left to the hardware prefetcher.
template <class T>
Ahead part_of_group(const RightOperand<T>& b, std::int64_t k0, std::int64_t depth, std::int64_t j,
                    std::int64_t part, std::int64_t parts) {
  if (part >= parts || b.form != RightForm::kRows) return {};
  return {.line = b.data + (k0 + part * depth / parts) * b.stride + j,
          .step = kLine,
          .jump = b.stride * std::int64_t{sizeof(T)} - (Ahead::kRun - 1) * kLine};
}

// Groups of panels against all strips, for depth steps of the reduction from k0 on. The sums go to
// the block `to`, whose first column is `first_column` of C.
template <class T>
class GroupProduct {
 public:
  GroupProduct(const MatmulProblem<T>& problem, const EvenCuts& strips, std::int64_t k0,
               std::int64_t depth, typename BlockSums<T>::Block to, std::int64_t first_column,
               bool adds, Scratch<T>& scratch, const TileSet<T>& tiles)
      : problem_(problem),
        strips_(strips),
        k0_(k0),
        depth_(depth),
        chains_(Chains::of(depth)),
        to_(to),
        first_column_(first_column),
        start_(adds ? Start::kIsAdded : Start::kZero),
        scratch_(scratch),
        tiles_(tiles),
        panels_(tiles.panels(strips.length(0))),
        in_place_(problem.b.form == RightForm::kNz) {}

  // The group that comes after this one, if any, is at (next_k0, next_j).
  void run(std::int64_t j0, std::int64_t j_end, std::int64_t next_k0, std::int64_t next_j) {
    const auto& b = problem_.b;
    if (!in_place_) pack_right_panels(b, k0_, depth_, j0, j_end, problem_.n, scratch_.group.data());
    if (depth_ <= kShortDepth<T>) return run_strip_by_strip(j0, j_end);
    const auto longest = strips_.length(0), steps_per_fetch = tiles_.steps_per_fetch(longest);
    // A single strip prefetches three panels at a time, to finish in time. With several strips, the
    // first ones prefetch two panels at a time, and also panels after the next group: these may
    // belong to the next expert.
    const std::int64_t panels_of_part = steps_per_fetch > 1 ? 1 : strips_.count() == 1 ? 3 : 2;
    const bool waits = strips_.count() == 1 && longest <= kWaitingRows;
    const T* const after =
        next_k0 < problem_.k ? b.data + next_j * b.stride + next_k0 * kNzBlock : panel(j_end, j0);
    std::int64_t part = 0;
    for (auto j = j0; j < j_end;) {
      const auto panels = panels_at(j, j_end);
      const auto next = j + panels * kNzBlock;
      for (std::int64_t s = 0; s < strips_.count(); ++s, ++part) {
        Ahead ahead;
        if (in_place_ && s < panels * steps_per_fetch && !waits) {
          ahead = part_of_panels(b, next < j_end ? panel(next, j0) : after, depth_, s,
                                 steps_per_fetch, panels_of_part);
        } else if (!in_place_ && next_k0 < problem_.k) {
          ahead = part_of_group(b, next_k0, std::min(depth_, problem_.k - next_k0), next_j, part,
                                kPanelsOfGroup * steps_per_fetch);
        }
        tile(strip(s), j, j0, panels, ahead);
      }
      j = next;
    }
  }

 private:
  void run_strip_by_strip(std::int64_t j0, std::int64_t j_end) {
    const auto width = panels_ * kNzBlock;
    const auto whole_end = j0 + (std::min(j_end, problem_.n) - j0) / width * width;
    const auto panel_stride = panel(kNzBlock, 0) - panel(0, 0);
    for (std::int64_t s = 0; s < strips_.count(); ++s) {
      const auto strip = this->strip(s);
      const auto multiply = tiles_.tile(strip.rows, panels_);
      auto j = j0;
      for (; j < whole_end; j += width) {
        multiply(strip.packed, panel(j, j0), panel_stride, chains_, strip.c + (j - first_column_),
                 to_.stride, start_, {});
      }
      for (; j < j_end; j += kNzBlock) tile(strip, j, j0, 1, {});
    }
  }

  // How many panels to take at a time from column j on: as many as suit the strips, or as are left.
  // A last panel with missing columns is taken alone.
  std::int64_t panels_at(std::int64_t j, std::int64_t j_end) const {
    return std::clamp<std::int64_t>((std::min(j_end, problem_.n) - j) / kNzBlock, 1, panels_);
  }

  const T* panel(std::int64_t j, std::int64_t j0) const {
    return in_place_ ? problem_.b.data + j * problem_.b.stride + k0_ * kNzBlock
                     : scratch_.group.data() + (j - j0) * depth_;
  }

  struct Strip {
    const T* packed;
    T* c;  // its rows of the block
    std::int64_t rows;
  };
  Strip strip(std::int64_t s) const {
    return {scratch_.strips.data() + s * strip_size<T>(tiles_.strip_rows, depth_),
            to_.data + strips_.begin(s) * to_.stride, strips_.length(s)};
  }

  void tile(const Strip& strip, std::int64_t j, std::int64_t j0, std::int64_t panels,
            const Ahead& ahead) {
    const auto multiply = tiles_.tile(strip.rows, panels);
    const T* const first = panel(j, j0);
    T* const c = strip.c + (j - first_column_);
    const auto columns = problem_.n - j;
    if (columns >= kNzBlock) {
      multiply(strip.packed, first, panel(j + kNzBlock, j0) - first, chains_, c, to_.stride, start_,
               ahead);
    } else {
      multiply_edge_tile(multiply, strip.rows, strip.packed, first, chains_, c, to_.stride, columns,
                         start_);
    }
  }

  const MatmulProblem<T>& problem_;
  const EvenCuts& strips_;
  const std::int64_t k0_, depth_;
  const Chains chains_;
  const typename BlockSums<T>::Block to_;
  const std::int64_t first_column_;
  const Start start_;
  Scratch<T>& scratch_;
  const TileSet<T>& tiles_;
  const std::int64_t panels_;
  const bool in_place_;
};

}  // namespace

template <class T>
void matmul_block(const MatmulProblem<T>& problem, std::int64_t i0, std::int64_t rows,
                  std::int64_t j0, std::int64_t columns, const ProductLoops<T>& loops) {
  if (problem.b.form == RightForm::kNzTransposed) {
    return rows <= kFewRows
               ? few_rows_matmul_block(problem, i0, rows, j0, columns, loops.few_rows)
               : transposed_matmul_block(problem, i0, rows, j0, columns, loops.transposed);
  }
  if (problem.b.form == RightForm::kRows && problem.k <= kFewSteps) {
    return few_steps_matmul_block(problem, i0, rows, j0, columns, loops.few_steps);
  }
  const auto& a = problem.a;
  auto& buffers = scratch<T>();
  const auto j_end = j0 + columns;
  const auto strip_rows = loops.tiles.strip_rows;
  const EvenCuts strips(rows, strip_rows);
  assert(strips.count() * strip_size<T>(strip_rows, std::min(kCacheDepth<T>, problem.k)) <=
         kStripsSize<T>);
  walk_reduction(problem, i0, rows, j0, columns, kCacheDepth<T>,
                 [&](std::int64_t k0, std::int64_t depth, const auto& to, bool adds) {
                   pack_left_strips(a.data + i0 * a.row_stride + k0 * a.k_stride, a.row_stride,
                                    a.k_stride, strips, strip_rows, depth,
                                    strip_size<T>(strip_rows, depth), buffers.strips.data());
                   GroupProduct<T> product(problem, strips, k0, depth, to, j0, adds, buffers,
                                           loops.tiles);
                   const auto width = kGroupColumns * (depth <= kShortDepth<T> ? kShortGroups : 1);
                   for (auto j = j0; j < j_end; j += width) {
                     const auto end = std::min(j + width, j_end);
                     const bool last = end == j_end;
                     product.run(j, end, last ? k0 + depth : k0, last ? j0 : end);
                   }
                 });
}

template <class T>
void matmul_block(const MatmulProblem<T>& problem, std::int64_t i0, std::int64_t rows,
                  std::int64_t j0, std::int64_t columns) {
  matmul_block(problem, i0, rows, j0, columns, product_loops<T>());
}

template void matmul_block<float>(const MatmulProblem<float>&, std::int64_t, std::int64_t,
                                  std::int64_t, std::int64_t);
template void matmul_block<double>(const MatmulProblem<double>&, std::int64_t, std::int64_t,
                                   std::int64_t, std::int64_t);
template void matmul_block<float>(const MatmulProblem<float>&, std::int64_t, std::int64_t,
                                  std::int64_t, std::int64_t, const ProductLoops<float>&);
template void matmul_block<double>(const MatmulProblem<double>&, std::int64_t, std::int64_t,
                                   std::int64_t, std::int64_t, const ProductLoops<double>&);

}  // namespace moegrad::kernels
