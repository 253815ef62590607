// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/matmul_tile.h"

#include <algorithm>
#include <array>
#include <utility>

namespace moegrad::kernels {
namespace {

// Two multiply-adds start in a cycle and take four: so many chains keep them busy. More, and GCC 12
// spills some to the stack.
constexpr int kChains = 8;

template <class T, int kRows>
constexpr int kPanels = [] {
  constexpr int kVecs = static_cast<int>(kNzBlock / Vec<T>::kLanes);
  return std::max(1, kChains / (kRows * kVecs));
}();

template <class T, int kRows>
void multiply_panels(const T* a, const T* b, std::int64_t panel_stride, std::int64_t k, T* c,
                     std::int64_t ldc, bool resume) {
  constexpr int kLanes = Vec<T>::kLanes, kVecs = static_cast<int>(kNzBlock) / kLanes;
  Vec<T> sum[kPanels<T, kRows>][kRows][kVecs];
#pragma GCC unroll 4
  for (int q = 0; q < kPanels<T, kRows>; ++q) {
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        const T* const from = c + i * ldc + q * kNzBlock + v * kLanes;
        sum[q][i][v] = resume ? Vec<T>::load(from) : Vec<T>::zero();
      }
    }
  }
  for (std::int64_t p = 0; p < k; ++p) {
#pragma GCC unroll 4
    for (int q = 0; q < kPanels<T, kRows>; ++q) {
      Vec<T> right[kVecs];
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) right[v] = Vec<T>::load(b + q * panel_stride + v * kLanes);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        const auto left = Vec<T>::broadcast(a[i]);
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) accumulate(sum[q][i][v], left, right[v]);
      }
    }
    a += kTileRows<T>;
    b += kNzBlock;
  }
#pragma GCC unroll 4
  for (int q = 0; q < kPanels<T, kRows>; ++q) {
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        sum[q][i][v].store(c + i * ldc + q * kNzBlock + v * kLanes);
      }
    }
  }
}

// What `make` gives for each number of rows from 1 to kTileRows.
template <class T, class Make>
constexpr auto by_rows(const Make& make) {
  return [&]<int... kRows>(std::integer_sequence<int, kRows...>) {
    return std::array{make.template operator()<kRows + 1>()...};
  }
  (std::make_integer_sequence<int, static_cast<int>(kTileRows<T>)>());
}

}  // namespace

template <class T>
Tile<T> tile_of(std::int64_t rows) {
  static constexpr auto kTiles =
      by_rows<T>([]<int kRows>() -> Tile<T> { return &multiply_tile<T, kRows>; });
  return kTiles[static_cast<std::size_t>(rows - 1)];
}

template <class T>
WideTile<T> wide_tile_of(std::int64_t rows) {
  static constexpr auto kTiles = by_rows<T>([]<int kRows>() -> WideTile<T> {
    if constexpr (kPanels<T, kRows> == 1)
      return {};
    else
      return {&multiply_panels<T, kRows>, kPanels<T, kRows>};
  });
  return kTiles[static_cast<std::size_t>(rows - 1)];
}

template <class T>
void multiply_edge_tile(std::int64_t rows, const T* a, const T* b, std::int64_t k, T* c,
                        std::int64_t ldc, std::int64_t columns, bool resume) {
  alignas(64) std::array<T, kTileRows<T> * kNzBlock> tile{};
  for (std::int64_t i = 0; resume && i < rows; ++i) {
    std::copy_n(c + i * ldc, columns, tile.data() + i * kNzBlock);
  }
  tile_of<T>(rows)(a, b, k, tile.data(), kNzBlock, resume, {.line = b});
  for (std::int64_t i = 0; i < rows; ++i) {
    std::copy_n(tile.data() + i * kNzBlock, columns, c + i * ldc);
  }
}

template Tile<float> tile_of<float>(std::int64_t);
template Tile<double> tile_of<double>(std::int64_t);
template WideTile<float> wide_tile_of<float>(std::int64_t);
template WideTile<double> wide_tile_of<double>(std::int64_t);
template void multiply_edge_tile<float>(std::int64_t, const float*, const float*, std::int64_t,
                                        float*, std::int64_t, std::int64_t, bool);
template void multiply_edge_tile<double>(std::int64_t, const double*, const double*, std::int64_t,
                                         double*, std::int64_t, std::int64_t, bool);

}  // namespace moegrad::kernels
