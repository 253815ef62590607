// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/transposed_matmul.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>

#include "framework/tensor/layout.h"
#include "ops/kernels/matmul_tile.h"
#include "ops/kernels/transpose_8x8.h"

namespace moegrad::kernels {
namespace {

// Of the reduction, a multiple of 16: a panel of 24 KB leaves the first level room for what is read
// of B meanwhile.
template <class T>
constexpr std::int64_t kDepth = 1536 / sizeof(T);

// Columns of C, rows of C^T, that are computed before they are transposed into C.
constexpr std::int64_t kGroup = 48;

// Rows of A come in panels of 16, the last one with what is left, 16 or 24 columns wide: a panel of
// 8 would keep no more than two thirds of the multiply-adds busy.
constexpr std::int64_t kPanelRows = 16, kPanelStep = 8, kWidestPanel = 24;

class PanelCuts {
 public:
  explicit PanelCuts(std::int64_t rows)
      : rows_(rows), count_((rows + kPanelStep - 1) / kPanelRows) {}
  std::int64_t count() const { return count_; }
  std::int64_t begin(std::int64_t i) const { return i * kPanelRows; }
  std::int64_t rows(std::int64_t i) const { return i + 1 < count_ ? kPanelRows : rows_ - begin(i); }
  std::int64_t width(std::int64_t i) const { return round_up(rows(i), kPanelStep); }

 private:
  std::int64_t rows_, count_;
};

template <class T>
struct Scratch {
  static_assert(kBlockRows % kPanelStep == 0);
  alignas(64) std::array<T, kBlockRows * kDepth<T>> panels;
  alignas(64) std::array<T, kGroup * kWidestPanel> tile;  // of C^T, [kGroup, width]
};

template <class T>
Scratch<T>& scratch() {
  thread_local const auto block = std::make_unique<Scratch<T>>();  // all of it touched by zeros
  return *block;
}

// panel[p, r] = a[r * stride + p] for p < k, r < width, in a panel [k, width]. Past the `rows` that
// exist the last one is repeated; nobody reads what comes of it.
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

// C^T[j, i] = chain over p of B^T[j, p] A^T[p, i] for kRows rows j and kVecs vectors of columns i.
//
// B^T is at `b` as NZ has it, B^T[j, p] = b[p / 16 * block_step + j * 16 + p % 16]; A^T is a panel
// [k, width] and C^T a tile [kRows, width], width being the elements of kVecs vectors.
template <class T, int kRows, int kVecs>
void multiply_stored_rows(const T* b, std::int64_t block_step, const T* panel, std::int64_t k,
                          T* tile, bool resume) {
  constexpr int kLanes = Vec<T>::kLanes, kWidth = kVecs * kLanes;
  Vec<T> sum[kRows][kVecs];
#pragma GCC unroll 12
  for (int j = 0; j < kRows; ++j) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      sum[j][v] = resume ? Vec<T>::load(tile + j * kWidth + v * kLanes) : Vec<T>::zero();
    }
  }
  for (; k >= kNzBlock; k -= kNzBlock) {
#pragma GCC unroll 12
    for (int j = 0; j < kRows; ++j) __builtin_prefetch(b + (kRows + j) * kNzBlock);
#pragma GCC unroll 16
    for (int u = 0; u < kNzBlock; ++u) {
      Vec<T> right[kVecs];
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        right[v] = Vec<T>::load(panel + u * kWidth + v * kLanes);
      }
#pragma GCC unroll 12
      for (int j = 0; j < kRows; ++j) {
        const auto left = Vec<T>::broadcast(b[j * kNzBlock + u]);
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) accumulate(sum[j][v], left, right[v]);
      }
    }
    panel += kNzBlock * kWidth;
    b += block_step;
  }
  for (std::int64_t u = 0; u < k; ++u) {
#pragma GCC unroll 12
    for (int j = 0; j < kRows; ++j) {
      const auto left = Vec<T>::broadcast(b[j * kNzBlock + u]);
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        accumulate(sum[j][v], left, Vec<T>::load(panel + v * kLanes));
      }
    }
    panel += kWidth;
  }
#pragma GCC unroll 12
  for (int j = 0; j < kRows; ++j) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) sum[j][v].store(tile + j * kWidth + v * kLanes);
  }
}

// `rows` rows of C^T, a multiple of 16, by a panel of kVecs vectors.
template <class T, int kVecs>
void multiply_rows(const T* b, std::int64_t block_step, const T* panel, std::int64_t k, T* tile,
                   std::int64_t rows, bool resume) {
  // A group is 48 rows but for the last, of 16 or 32. Twelve chains hide the latency of the
  // multiply-adds with room to spare, eight just do; doubles need the registers for the panel.
  constexpr int kOfGroup = sizeof(T) == 4 ? 12 / kVecs : std::max(1, 8 / kVecs);
  constexpr int kOfLast = sizeof(T) == 4 ? 4 : kOfGroup;
  static_assert(kGroup % kOfGroup == 0 && kNzBlock % kOfLast == 0);
  const auto run = [&]<int kRows>() {
    for (std::int64_t j = 0; j < rows; j += kRows) {
      multiply_stored_rows<T, kRows, kVecs>(b + j * kNzBlock, block_step, panel, k,
                                            tile + j * kVecs * Vec<T>::kLanes, resume);
    }
  };
  rows == kGroup ? run.template operator()<kOfGroup>() : run.template operator()<kOfLast>();
}

template <class T>
auto multiply_rows_by(std::int64_t width) {
  constexpr int kVecs = static_cast<int>(kPanelStep / Vec<T>::kLanes);
  return width == kPanelRows ? &multiply_rows<T, 2 * kVecs> : &multiply_rows<T, 3 * kVecs>;
}

}  // namespace

template <class T>
void transposed_matmul_block(const MatmulProblem<T>& problem, std::int64_t i0, std::int64_t rows,
                             std::int64_t j0, std::int64_t columns) {
  const auto& a = problem.a;
  const auto& b = problem.b;
  const auto block_step = b.stride * kNzBlock;
  auto& buffers = scratch<T>();
  T* const tile = buffers.tile.data();
  const PanelCuts cuts(rows);
  std::int64_t k0 = 0;
  do {  // once even for k = 0, whose sums are zero
    const auto depth = std::min(kDepth<T>, problem.k - k0);
    const bool resume = problem.resume || k0 > 0;
    const auto panel = [&](std::int64_t i) {
      return buffers.panels.data() + cuts.begin(i) * depth;
    };
    for (std::int64_t i = 0; i < cuts.count(); ++i) {
      pack_panel(a.data + (i0 + cuts.begin(i)) * a.row_stride + k0, a.row_stride, cuts.rows(i),
                 depth, cuts.width(i), panel(i));
    }
    for (auto j = j0; j < j0 + columns; j += kGroup) {
      const auto group = std::min(kGroup, j0 + columns - j);
      const T* const stored = b.data + (k0 / kNzBlock * b.stride + j) * kNzBlock;
      for (std::int64_t i = 0; i < cuts.count(); ++i) {
        const auto height = cuts.rows(i), width = cuts.width(i);
        T* const c = problem.c + (i0 + cuts.begin(i)) * problem.c_stride + j;
        if (resume) transpose(c, problem.c_stride, tile, width, group, height);
        // Rows of B^T past the last are zero padding.
        multiply_rows_by<T>(width)(stored, block_step, panel(i), depth, tile,
                                   round_up(group, kNzBlock), resume);
        transpose(tile, width, c, problem.c_stride, height, group);
      }
    }
    k0 += depth;
  } while (k0 < problem.k);
}

template void transposed_matmul_block<float>(const MatmulProblem<float>&, std::int64_t,
                                             std::int64_t, std::int64_t, std::int64_t);
template void transposed_matmul_block<double>(const MatmulProblem<double>&, std::int64_t,
                                              std::int64_t, std::int64_t, std::int64_t);

}  // namespace moegrad::kernels
