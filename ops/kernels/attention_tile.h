// SPDX-License-Identifier: Apache-2.0
#pragma once

// What forward and backward of attention share: Note [Blocked causal attention].

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "ops/kernels/attention.h"
#include "ops/kernels/simd.h"

namespace moegrad::kernels {

inline constexpr std::int64_t kTileRows = 6;
inline constexpr std::int64_t kTileColumns = 16;

constexpr std::int64_t round_up_to(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// store(r, c, Vec) receives lanes c.. of row r of the 6x16 product
///
///     sum_{s < depth} a[r * a_row + s * a_step] * b[s * b_step + c]
///
/// summed from zero in ascending order, by fma.
template <class T, class Store>
void tile_product(const T* a, std::int64_t a_row, std::int64_t a_step, const T* b,
                  std::int64_t b_step, std::int64_t depth, const Store& store) {
  constexpr std::int64_t kLanes = Vec<T>::kLanes;
  for (std::int64_t c = 0; c < kTileColumns; c += 2 * kLanes) {
    Vec<T> sum[kTileRows][2];
#pragma GCC unroll 6
    for (auto& row : sum) row[0] = row[1] = Vec<T>::zero();
    for (std::int64_t s = 0; s < depth; ++s) {
      const auto b0 = Vec<T>::load(b + s * b_step + c);
      const auto b1 = Vec<T>::load(b + s * b_step + c + kLanes);
#pragma GCC unroll 6
      for (std::int64_t r = 0; r < kTileRows; ++r) {
        const auto x = Vec<T>::broadcast(a[r * a_row + s * a_step]);
        sum[r][0] = fma(x, b0, sum[r][0]);
        sum[r][1] = fma(x, b1, sum[r][1]);
      }
    }
#pragma GCC unroll 6
    for (std::int64_t r = 0; r < kTileRows; ++r) {
      store(r, c, sum[r][0]);
      store(r, c + kLanes, sum[r][1]);
    }
  }
}

/// A block of query rows against a block of keys; positions count from the document's start. Row r
/// is position query_begin + r / group.
struct AttentionBlock {
  std::int64_t query_begin;
  std::int64_t rows;
  std::int64_t group;
  std::int64_t key_begin;
  std::int64_t keys;

  /// How many of the keys row r may see (rows behind the last: as the last).
  std::int64_t visible_keys(std::int64_t r) const {
    const auto position = query_begin + std::min(r, rows - 1) / group;
    return std::clamp<std::int64_t>(position + 1 - key_begin, 0, keys);
  }
  /// The first row that may see key j.
  std::int64_t first_row(std::int64_t j) const {
    return std::min(rows, std::max<std::int64_t>(0, key_begin + j - query_begin) * group);
  }
};

/// Leading dimensions of the blocks in scratch: whole tiles both along rows and along columns.
struct AttentionStrides {
  explicit AttentionStrides(const AttentionSizes& sizes)
      : row(round_up_to(sizes.query_block() * sizes.group(), std::lcm(kTileRows, kTileColumns))),
        dim(round_up_to(sizes.head_dim, kTileColumns)) {}
  std::int64_t row;  // of [key, row] and [dim, row]
  std::int64_t dim;  // of [row, dim] and [key, dim]
};

/// scores[j, r] = scale * k[j].q[r] wherever a tile has a visible pair. k [keys, dim], zero up to
/// whole tiles; q_t [head_dim, row].
template <class T>
void block_scores(const AttentionBlock& block, const AttentionStrides& strides,
                  std::int64_t head_dim, const T* k, const T* q_t, T scale, T* scores) {
  const auto factor = Vec<T>::broadcast(scale);
  for (std::int64_t r0 = 0; r0 < block.rows; r0 += kTileColumns) {
    const auto keys = block.visible_keys(r0 + kTileColumns - 1);
    for (std::int64_t j0 = 0; j0 < keys; j0 += kTileRows) {
      T* target = scores + j0 * strides.row + r0;
      tile_product(k + j0 * strides.dim, strides.dim, 1, q_t + r0, strides.row, head_dim,
                   [&](std::int64_t j, std::int64_t r, Vec<T> sum) {
                     (sum * factor).store(target + j * strides.row + r);
                   });
    }
  }
}

/// Copies `count` rows of head_dim, `step` apart, to [count, dim]; padding is zero up to whole
/// tiles of rows and columns.
template <class T>
void pack_rows(const T* source, std::int64_t step, std::int64_t count, std::int64_t head_dim,
               std::int64_t dim, T* target) {
  for (std::int64_t i = 0; i < count; ++i) {
    std::copy_n(source + i * step, head_dim, target + i * dim);
    std::fill(target + i * dim + head_dim, target + (i + 1) * dim, T(0));
  }
  std::fill(target + count * dim, target + round_up_to(count, kTileRows) * dim, T(0));
}

/// target[d, r] = rows[r, d] for r < count and zero up to the leading dimension `row`.
template <class T>
void transpose_rows(const T* rows, std::int64_t dim, std::int64_t count, std::int64_t head_dim,
                    std::int64_t row, T* target) {
  for (std::int64_t d = 0; d < head_dim; ++d) {
    for (std::int64_t r = 0; r < count; ++r) target[d * row + r] = rows[r * dim + d];
    std::fill(target + d * row + count, target + (d + 1) * row, T(0));
  }
}

}  // namespace moegrad::kernels
