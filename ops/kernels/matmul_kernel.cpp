// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/matmul_kernel.h"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "framework/tensor/layout.h"
#include "ops/kernels/matmul_tile.h"

namespace moegrad::kernels {
namespace {

constexpr std::int64_t kCacheDepth = 512;  // of the reduction: a panel of floats is 32 KB
constexpr std::int64_t kStrips = 16;       // of A, packed side by side
constexpr std::int64_t kRowsTogether = 16;

template <class T>
struct Scratch {
  alignas(64) std::array<T, kBlockColumns * kCacheDepth> right;
  alignas(64) std::array<T, kStrips * kTileRows<T> * kCacheDepth> left;
  alignas(64) std::array<T, kTileRows<T> * kNzBlock> tile;
};

template <class T>
Scratch<T>& scratch() {
  thread_local const auto block = std::make_unique<Scratch<T>>();
  return *block;
}

template <class T>
using Tile = void (*)(const T*, std::int64_t, std::int64_t, const T*, std::int64_t, T*,
                      std::int64_t, bool);

template <class T>
Tile<T> tile_of(std::int64_t rows) {
  static constexpr auto kTiles = []<int... kRows>(std::integer_sequence<int, kRows...>) {
    return std::array<Tile<T>, sizeof...(kRows)>{&multiply_tile<T, kRows + 1>...};
  }
  (std::make_integer_sequence<int, static_cast<int>(kTileRows<T>)>());
  return kTiles[static_cast<std::size_t>(rows - 1)];
}

// A tile at the right edge: computed in full beside C, of which `columns` columns exist.
template <class T>
void multiply_edge_tile(std::int64_t rows, const LeftOperand<T>& a, const T* panel, std::int64_t k,
                        T* c, std::int64_t c_stride, std::int64_t columns, bool resume, T* tile) {
  for (std::int64_t i = 0; resume && i < rows; ++i) {
    std::copy_n(c + i * c_stride, columns, tile + i * kNzBlock);
  }
  tile_of<T>(rows)(a.data, a.row_stride, a.k_stride, panel, k, tile, kNzBlock, resume);
  for (std::int64_t i = 0; i < rows; ++i) {
    std::copy_n(tile + i * kNzBlock, columns, c + i * c_stride);
  }
}

// Cuts m rows into the fewest strips, of even heights: 8 = 4 + 4, not 6 + 2.
class Strips {
 public:
  Strips(std::int64_t m, std::int64_t height)
      : count_((m + height - 1) / height),
        height_(count_ == 0 ? 0 : m / count_),
        higher_(m - count_ * height_) {}
  std::int64_t count() const { return count_; }
  std::int64_t begin(std::int64_t strip) const {
    return strip * height_ + std::min(strip, higher_);
  }
  std::int64_t rows(std::int64_t strip) const { return begin(strip + 1) - begin(strip); }

 private:
  std::int64_t count_, height_, higher_;
};

// Packs strips [first, first + kStrips) side by side, some rows of A at a time: neighbouring strips
// share cache lines, which rows a large power of two apart would evict before the next strip.
template <class T>
void pack_left_strips(const T* a, std::int64_t k_stride, const Strips& strips, std::int64_t first,
                      std::int64_t depth, T* packed) {
  for (std::int64_t p = 0; p < depth; p += kRowsTogether) {
    for (auto s = first; s < std::min(first + kStrips, strips.count()); ++s) {
      pack_left_strip(a + strips.begin(s) + p * k_stride, k_stride, strips.rows(s),
                      std::min(kRowsTogether, depth - p),
                      packed + ((s - first) * kCacheDepth + p) * kTileRows<T>);
    }
  }
}

// Packs the panels of columns [j0, j_end), each [depth, 16], in the order in which B is stored.
template <class T>
void pack_right_panels(const RightOperand<T>& b, std::int64_t k0, std::int64_t depth,
                       std::int64_t j0, std::int64_t j_end, std::int64_t n, T* panels) {
  const auto rows = b.form == RightForm::kColumns ? depth : kRowsTogether;
  for (std::int64_t p = 0; p < depth; p += rows) {
    for (auto j = j0; j < j_end; j += kNzBlock) {
      pack_right_panel(b, k0 + p, std::min(rows, depth - p), j, n,
                       panels + (j - j0) * depth + p * kNzBlock);
    }
  }
}

}  // namespace

template <class T>
void matmul_block(const MatmulProblem<T>& problem, std::int64_t i0, std::int64_t j0) {
  const auto& [a, b, c, c_stride, m, n, k] = problem;
  auto& buffers = scratch<T>();
  const auto j_end = std::min(j0 + kBlockColumns, n);
  const Strips strips(std::min(kBlockRows, m - i0), kTileRows<T>);
  const bool pack_left = a.k_stride != 1;

  std::int64_t k0 = 0;
  do {  // once even for k = 0, whose sums are zero
    const auto depth = std::min(kCacheDepth, k - k0);
    const bool in_place = b.form == RightForm::kNz;
    if (!in_place) pack_right_panels(b, k0, depth, j0, j_end, n, buffers.right.data());
    for (std::int64_t strip = 0; strip < strips.count(); ++strip) {
      const auto i = i0 + strips.begin(strip);
      const auto rows = strips.rows(strip);
      LeftOperand<T> left{a.data + i * a.row_stride + k0 * a.k_stride, a.row_stride, a.k_stride};
      if (pack_left) {
        const auto slot = strip % kStrips;
        T* packed = buffers.left.data() + slot * kTileRows<T> * kCacheDepth;
        if (slot == 0) {
          pack_left_strips(a.data + i0 * a.row_stride + k0 * a.k_stride, a.k_stride, strips, strip,
                           depth, packed);
        }
        left = {packed, 1, kTileRows<T>};
      }
      for (auto j = j0; j < j_end; j += kNzBlock) {
        const T* panel = in_place ? b.data + j * b.stride + k0 * kNzBlock
                                  : buffers.right.data() + (j - j0) * depth;
        T* target = c + i * c_stride + j;
        if (n - j >= kNzBlock) {
          tile_of<T>(rows)(left.data, left.row_stride, left.k_stride, panel, depth, target,
                           c_stride, k0 > 0);
        } else {
          multiply_edge_tile(rows, left, panel, depth, target, c_stride, n - j, k0 > 0,
                             buffers.tile.data());
        }
      }
    }
    k0 += depth;
  } while (k0 < k);
}

template void matmul_block<float>(const MatmulProblem<float>&, std::int64_t, std::int64_t);
template void matmul_block<double>(const MatmulProblem<double>&, std::int64_t, std::int64_t);

}  // namespace moegrad::kernels
