// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/matmul_tile.h"

#include <algorithm>
#include <array>
#include <utility>

namespace moegrad::kernels {

template <class T>
Tile<T> tile_of(std::int64_t rows) {
  static constexpr auto kTiles = []<int... kRows>(std::integer_sequence<int, kRows...>) {
    return std::array<Tile<T>, sizeof...(kRows)>{&multiply_tile<T, kRows + 1>...};
  }
  (std::make_integer_sequence<int, static_cast<int>(kTileRows<T>)>());
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
template void multiply_edge_tile<float>(std::int64_t, const float*, const float*, std::int64_t,
                                        float*, std::int64_t, std::int64_t, bool);
template void multiply_edge_tile<double>(std::int64_t, const double*, const double*, std::int64_t,
                                         double*, std::int64_t, std::int64_t, bool);

}  // namespace moegrad::kernels
