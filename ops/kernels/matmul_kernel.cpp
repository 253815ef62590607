// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/matmul_kernel.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <memory>

#include "framework/tensor/layout.h"
#include "ops/kernels/even_cuts.h"
#include "ops/kernels/few_rows_matmul.h"
#include "ops/kernels/matmul_tile.h"
#include "ops/kernels/transposed_matmul.h"

namespace moegrad::kernels {
namespace {

constexpr std::int64_t kLine = 64;  // bytes of a cache line

// Of the reduction: panels of 32 KB. Half of that would stay in the first cache level, but then C
// is read and written twice as often; measured, the longer walk is the faster by a few hundredths.
template <class T>
constexpr std::int64_t kCacheDepth = 2048 / sizeof(T);

// Reductions up to this long go strip by strip, through groups that are as much wider.
constexpr std::int64_t kShortGroups = 8;
template <class T>
constexpr std::int64_t kShortDepth = kCacheDepth<T> / kShortGroups;

// A strip of six rows takes up to 12 KB; one cache line more keeps the same step of all strips from
// falling into one set of the first level while they are packed side by side.
template <class T>
constexpr std::int64_t strip_size(std::int64_t depth) {
  return kTileRows<T> * depth + kLine / std::int64_t{sizeof(T)};
}
template <class T>
constexpr std::int64_t kStripsSize =
    (kBlockRows + kTileRows<T> - 1) / kTileRows<T>* strip_size<T>(kCacheDepth<T>);

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

constexpr std::int64_t kPartsOfPanel = 4;

// Fetches part `part` of the panel at `panel` in NZ.
template <class T>
Ahead part_of_panel(const T* panel, std::int64_t depth, std::int64_t part) {
  if (part >= kPartsOfPanel) return {.line = panel};
  return {.line = panel + part * (depth / kPartsOfPanel) * kNzBlock, .step = kLine, .jump = kLine};
}

// Fetches part `part` of what the group of columns from j on will be packed from, for the depth
// steps from k0 on. In B's rows it is runs of cache lines; columns are left to the hardware.
template <class T>
Ahead part_of_group(const RightOperand<T>& b, std::int64_t k0, std::int64_t depth, std::int64_t j,
                    std::int64_t part) {
  constexpr std::int64_t kParts = 32;
  if (part >= kParts) return {.line = b.data};
  if (b.form == RightForm::kRows) {
    return {.line = b.data + (k0 + part * depth / kParts) * b.stride + j,
            .step = kLine,
            .jump = b.stride * std::int64_t{sizeof(T)} - (Ahead::kRun - 1) * kLine};
  }
  return {.line = b.data};
}

// One group of panels against all strips, for depth steps of the reduction from k0 on.
template <class T>
class GroupProduct {
 public:
  GroupProduct(const MatmulProblem<T>& problem, const EvenCuts& strips, std::int64_t i0,
               std::int64_t k0, std::int64_t depth, Scratch<T>& scratch)
      : problem_(problem),
        strips_(strips),
        i0_(i0),
        k0_(k0),
        depth_(depth),
        scratch_(scratch),
        in_place_(problem.b.form == RightForm::kNz),
        resume_(problem.resume || k0 > 0) {}

  // The group that comes after this one, if any, is at (next_k0, next_j).
  void run(std::int64_t j0, std::int64_t j_end, std::int64_t next_k0, std::int64_t next_j) {
    const auto& b = problem_.b;
    if (!in_place_) pack_right_panels(b, k0_, depth_, j0, j_end, problem_.n, scratch_.group.data());
    if (depth_ <= kShortDepth<T>) {
      for (std::int64_t s = 0; s < strips_.count(); ++s) {
        const auto strip = this->strip(s);
        for (auto j = j0; j < j_end; j += kNzBlock) {
          tile(strip, j, panel(j, j0), {.line = strip.packed});
        }
      }
      return;
    }
    std::int64_t part = 0;
    for (auto j = run_wide(j0, j_end); j < j_end; j += kNzBlock) {
      const T* current = panel(j, j0);
      const bool has_next = j + kNzBlock < j_end || next_j == j_end;
      for (std::int64_t s = 0; s < strips_.count(); ++s, ++part) {
        Ahead ahead{.line = current};
        if (in_place_ && has_next) {
          ahead = part_of_panel(panel(j + kNzBlock, j0), depth_, s);
        } else if (!in_place_ && next_k0 < problem_.k) {
          ahead = part_of_group(b, next_k0, std::min(depth_, problem_.k - next_k0), next_j, part);
        }
        tile(strip(s), j, current, ahead);
      }
    }
  }

 private:
  // Where the columns end that a lone strip of few rows takes several panels at a time.
  std::int64_t run_wide(std::int64_t j0, std::int64_t j_end) {
    const auto wide = wide_tile_of<T>(strips_.length(0));
    if (strips_.count() != 1 || wide.panels == 1) return j0;
    const auto strip = this->strip(0);
    const auto width = wide.panels * kNzBlock;
    auto j = j0;
    for (; j + width <= std::min(j_end, problem_.n); j += width) {
      wide.multiply(strip.packed, panel(j, j0), panel(j + kNzBlock, j0) - panel(j, j0), depth_,
                    strip.c + j, problem_.c_stride, resume_);
    }
    return j;
  }

  const T* panel(std::int64_t j, std::int64_t j0) const {
    return in_place_ ? problem_.b.data + j * problem_.b.stride + k0_ * kNzBlock
                     : scratch_.group.data() + (j - j0) * depth_;
  }

  struct Strip {
    const T* packed;
    T* c;  // its rows
    std::int64_t rows;
    Tile<T> multiply;
  };
  Strip strip(std::int64_t s) const {
    const auto rows = strips_.length(s);
    return {scratch_.strips.data() + s * strip_size<T>(depth_),
            problem_.c + (i0_ + strips_.begin(s)) * problem_.c_stride, rows, tile_of<T>(rows)};
  }

  void tile(const Strip& strip, std::int64_t j, const T* panel, const Ahead& ahead) {
    const auto columns = problem_.n - j;
    if (columns >= kNzBlock) {
      strip.multiply(strip.packed, panel, depth_, strip.c + j, problem_.c_stride, resume_, ahead);
    } else {
      multiply_edge_tile(strip.rows, strip.packed, panel, depth_, strip.c + j, problem_.c_stride,
                         columns, resume_);
    }
  }

  const MatmulProblem<T>& problem_;
  const EvenCuts& strips_;
  const std::int64_t i0_, k0_, depth_;
  Scratch<T>& scratch_;
  const bool in_place_, resume_;
};

}  // namespace

template <class T>
void matmul_block(const MatmulProblem<T>& problem, std::int64_t i0, std::int64_t rows,
                  std::int64_t j0, std::int64_t columns) {
  if (problem.b.form == RightForm::kNzTransposed) {
    return rows <= kFewRows ? few_rows_matmul_block(problem, i0, rows, j0, columns)
                            : transposed_matmul_block(problem, i0, rows, j0, columns);
  }
  const auto& a = problem.a;
  auto& buffers = scratch<T>();
  const auto j_end = j0 + columns;
  const EvenCuts strips(rows, kTileRows<T>);
  assert(strips.count() * strip_size<T>(std::min(kCacheDepth<T>, problem.k)) <= kStripsSize<T>);
  std::int64_t k0 = 0;
  do {  // once even for k = 0, whose sums are zero
    const auto depth = std::min(kCacheDepth<T>, problem.k - k0);
    pack_left_strips(a.data + i0 * a.row_stride + k0 * a.k_stride, a.row_stride, a.k_stride, strips,
                     depth, strip_size<T>(depth), buffers.strips.data());
    GroupProduct<T> product(problem, strips, i0, k0, depth, buffers);
    const auto width = kGroupColumns * (depth <= kShortDepth<T> ? kShortGroups : 1);
    for (auto j = j0; j < j_end; j += width) {
      const auto end = std::min(j + width, j_end);
      const bool last = end == j_end;
      product.run(j, end, last ? k0 + depth : k0, last ? j0 : end);
    }
    k0 += depth;
  } while (k0 < problem.k);
}

template void matmul_block<float>(const MatmulProblem<float>&, std::int64_t, std::int64_t,
                                  std::int64_t, std::int64_t);
template void matmul_block<double>(const MatmulProblem<double>&, std::int64_t, std::int64_t,
                                   std::int64_t, std::int64_t);

}  // namespace moegrad::kernels
