// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/bf16/product.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <memory>

#include "framework/tensor/layout.h"
#include "ops/kernels/bf16/flush_denormals.h"
#include "ops/kernels/bf16/pack.h"
#include "ops/kernels/block_sums.h"
#include "ops/kernels/even_cuts.h"
#include "ops/kernels/halving.h"

namespace moegrad::kernels::bf16 {
namespace {

constexpr std::int64_t kGroupColumns = 128, kPartUnits = kPartSteps / kUnit;
constexpr std::int64_t kMostLeftUnitBytes = 2 * kUnitBytes;

struct Scratch {
  alignas(64) std::array<std::byte, kBlockRows / kPanel * kPartUnits * kMostLeftUnitBytes> left;
  alignas(64) std::array<std::byte, kGroupColumns / kPanel * kPartUnits * kUnitBytes> right;
  alignas(64) std::array<float, kBlockRows * kBlockColumns> whole;  // of a rounded block
};

Scratch& scratch() {
  thread_local const auto block = std::make_unique<Scratch>();
  return *block;
}

// Calls pack(from, steps, lanes, panel, unit) for each unit of all panels of an operand, in the
// order of its memory.
template <class Pack>
void for_each_unit(const Lanes& from, std::int64_t steps, std::int64_t lanes, const Pack& pack) {
  const auto one = [&](std::int64_t panel, std::int64_t unit) {
    const auto lane = panel * kPanel, step = unit * kUnit;
    pack(Lanes{from.data + step * from.step_stride + lane * from.lane_stride, from.step_stride,
               from.lane_stride},
         std::min(kUnit, steps - step), std::min(kPanel, lanes - lane), panel, unit);
  };
  const auto panels = (lanes + kPanel - 1) / kPanel, units = (steps + kUnit - 1) / kUnit;
  if (from.lane_stride == 1) {
    for (std::int64_t unit = 0; unit < units; ++unit) {
      for (std::int64_t panel = 0; panel < panels; ++panel) one(panel, unit);
    }
  } else {
    for (std::int64_t panel = 0; panel < panels; ++panel) {
      for (std::int64_t unit = 0; unit < units; ++unit) one(panel, unit);
    }
  }
}

// Panels of B[k0 : k0 + steps, j0 : j_end] from the blocks of its transpose. Blocks are whole.
void pack_transposed(const RightOperand<BFloat16>& b, std::int64_t k0, std::int64_t steps,
                     std::int64_t j0, std::int64_t j_end, PairOrder order, std::byte* panels) {
  BFloat16 lanes[kPanel * kUnit];
  for (auto j = j0; j < j_end; j += kPanel) {
    for (std::int64_t p = k0; p < k0 + steps; p += kUnit, panels += kUnitBytes) {
      for (std::int64_t half = 0; half < kUnit; half += kPanel) {
        const BFloat16* const panel = b.data + (p + half) * b.stride;
        unpack_steps(reinterpret_cast<const std::byte*>(panel + j / kUnit * kUnit * kPanel), order,
                     j % kUnit, lanes + half, kUnit);
      }
      pack_unit({lanes, 1, kUnit}, kUnit, kPanel, order, panels);
    }
  }
}

// Writes B[k0 : k0 + steps, j0 : min(j_end, n)] to consecutive panels.
void pack_panels(const RightOperand<BFloat16>& b, std::int64_t k0, std::int64_t steps,
                 std::int64_t n, std::int64_t j0, std::int64_t j_end, PairOrder order,
                 std::byte* panels) {
  assert(b.form != RightForm::kNz);
  if (b.form == RightForm::kNzTransposed) {
    return pack_transposed(b, k0, steps, j0, std::min(j_end, n), order, panels);
  }
  const bool by_rows = b.form == RightForm::kRows;
  const auto k_stride = by_rows ? b.stride : 1, j_stride = by_rows ? 1 : b.stride;
  const auto panel_bytes = round_up(steps, kUnit) / kUnit * kUnitBytes;
  for_each_unit(
      {b.data + k0 * k_stride + j0 * j_stride, k_stride, j_stride}, steps, std::min(j_end, n) - j0,
      [&](const Lanes& from, std::int64_t count, std::int64_t lanes, std::int64_t panel,
          std::int64_t unit) {
        pack_unit(from, count, lanes, order, panels + panel * panel_bytes + unit * kUnitBytes);
      });
}

// The product over one part of the reduction, into the block `to`.
class PartProduct {
 public:
  PartProduct(const Problem& problem, const Loops& loops, std::int64_t i0, std::int64_t rows,
              std::int64_t k0, std::int64_t steps, BlockSums<float>::Block to, bool adds)
      : problem_(problem),
        loops_(loops),
        rows_(rows),
        k0_(k0),
        steps_(steps),
        units_((steps + kUnit - 1) / kUnit),
        to_(to),
        adds_(adds),
        scratch_(scratch()) {
    const auto& a = problem.a;
    for_each_unit({a.data + i0 * a.row_stride + k0 * a.k_stride, a.k_stride, a.row_stride}, steps,
                  rows,
                  [&](const Lanes& from, std::int64_t count, std::int64_t lanes, std::int64_t panel,
                      std::int64_t unit) {
                    loops.pack_left(from, count, lanes,
                                    left_panel(panel * kPanel) + unit * loops.left_unit_bytes);
                  });
  }

  // Columns [j0, j_end) of C, which is column 0 of the block on.
  void run(std::int64_t j0, std::int64_t j_end, std::int64_t first_column) {
    const auto& b = problem_.b;
    const bool in_place = b.form == RightForm::kNz;
    const auto panel_bytes = in_place ? b.stride * kPanel * 2 : units_ * kUnitBytes;
    const std::byte* const panels =
        in_place ? reinterpret_cast<const std::byte*>(b.data + j0 * b.stride + k0_ * kPanel)
                 : scratch_.right.data();
    if (!in_place) {
      pack_panels(b, k0_, steps_, problem_.n, j0, j_end, loops_.order, scratch_.right.data());
    }
    // All strips of A use a few panels of B while these are in cache.
    for (std::int64_t j = j0; j < j_end;) {
      const auto most = loops_.panels[std::min(rows_, loops_.most_rows)];
      const auto count =
          std::clamp<std::int64_t>((std::min(j_end, problem_.n) - j) / kPanel, 1, most);
      const std::byte* const right = panels + (j - j0) / kPanel * panel_bytes;
      float* const c = to_.data + (j - first_column);
      const auto columns = problem_.n - j;
      for_each_strip([&](std::int64_t i, std::int64_t rows) {
        const auto at_once = loops_.panels[rows];
        const std::byte* const left = left_panel(i) + i % kPanel * loops_.left_row_bytes;
        for (std::int64_t p = 0; p < count; p += at_once) {
          const auto now = std::min(at_once, count - p);
          const auto tile = loops_.tiles[rows][now];
          float* const to = c + i * to_.stride + p * kPanel;
          const std::byte* const from = right + p * panel_bytes;
          if (columns >= kPanel) {
            tile(left, from, panel_bytes, units_, rows, to, to_.stride, adds_);
          } else {
            edge(tile, left, from, rows, columns, to);
          }
        }
      });
      j += count * kPanel;
    }
  }

 private:
  std::byte* left_panel(std::int64_t row) const {
    return scratch_.left.data() + row / kPanel * units_ * loops_.left_unit_bytes;
  }

  template <class Body>
  void for_each_strip(const Body& body) const {
    const auto step = std::max(kPanel, loops_.most_rows);
    for (std::int64_t i = 0; i < rows_; i += step) {
      const EvenCuts cuts(std::min(step, rows_ - i), loops_.most_rows);
      for (std::int64_t s = 0; s < cuts.count(); ++s) body(i + cuts.begin(s), cuts.length(s));
    }
  }

  // Only `columns` columns of C exist.
  void edge(Tile tile, const std::byte* left, const std::byte* right, std::int64_t rows,
            std::int64_t columns, float* to) const {
    alignas(64) std::array<float, Loops::kMostRows * kPanel> whole{};
    for (std::int64_t i = 0; adds_ && i < rows; ++i) {
      std::copy_n(to + i * to_.stride, columns, whole.data() + i * kPanel);
    }
    tile(left, right, 0, units_, rows, whole.data(), kPanel, adds_);
    for (std::int64_t i = 0; i < rows; ++i) {
      std::copy_n(whole.data() + i * kPanel, columns, to + i * to_.stride);
    }
  }

  const Problem& problem_;
  const Loops& loops_;
  const std::int64_t rows_, k0_, steps_, units_;
  const BlockSums<float>::Block to_;
  const bool adds_;
  Scratch& scratch_;
};

// What a kernel needs on a thread, until the end.
class KernelGuard {
 public:
  explicit KernelGuard(const Loops& loops) : loops_(loops) {
    if (loops.begin != nullptr) loops.begin();
  }
  ~KernelGuard() {
    if (loops_.end != nullptr) loops_.end();
  }
  KernelGuard(const KernelGuard&) = delete;
  KernelGuard& operator=(const KernelGuard&) = delete;

 private:
  const Loops& loops_;
  FlushDenormals mode_;
};

void round_row(const float* from, BFloat16* to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = BFloat16(from[i]);
}

}  // namespace

void pack_right(const RightOperand<BFloat16>& b, std::int64_t k, std::int64_t n, std::int64_t j0,
                std::int64_t j1, PairOrder order, std::byte* panels) {
  const auto panel_bytes = round_up(k, kUnit) / kUnit * kUnitBytes;
  pack_panels(b, 0, k, n, j0, j1, order, panels + j0 / kPanel * panel_bytes);
}

void multiply_block(const Problem& problem, std::int64_t i0, std::int64_t rows, std::int64_t j0,
                    std::int64_t columns, const Loops& loops) {
  const bool rounds = problem.rounded_c != nullptr;
  assert(rows <= kBlockRows && columns <= kBlockColumns && !(rounds && problem.adds));
  const KernelGuard guard(loops);
  float* const c = rounds ? scratch().whole.data() : problem.c + i0 * problem.c_stride + j0;
  const auto c_stride = rounds ? round_up(columns, kPanel) : problem.c_stride;
  const BlockSums<float> sums(c, c_stride, rows, columns,
                              most_levels(problem.k, kPartSteps, kUnit, problem.adds));
  for_each_part(
      0, problem.k, kPartSteps, kUnit, 0, problem.adds,
      [&](std::int64_t k0, std::int64_t steps, int level, bool adds) {
        PartProduct part(problem, loops, i0, rows, k0, steps, sums.at(level), adds);
        for (auto j = j0; j < j0 + columns; j += kGroupColumns) {
          part.run(j, std::min(j + kGroupColumns, j0 + columns), j0);
        }
      },
      [&](int level) { sums.join(level); });
  const auto round = loops.round != nullptr ? loops.round : &round_row;
  for (std::int64_t i = 0; rounds && i < rows; ++i) {
    round(c + i * c_stride, problem.rounded_c + (i0 + i) * problem.c_stride + j0, columns);
  }
}

}  // namespace moegrad::kernels::bf16
