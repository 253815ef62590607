// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <ostream>
#include <string_view>

#include "framework/tensor/dtype.h"

namespace moegrad {

/// How the bytes of a tensor are arranged: ND is strided row-major, NZ is FRACTAL_NZ.
///
/// Note [FRACTAL_NZ]
/// A matrix [K, N] is cut into columns of 16x16 blocks. The blocks of one column are stored one
/// after the other, and a block is row-major. With K16 = K rounded up to 16,
///
///     offset(k, n) = (n / 16) * K16 * 16 + k * 16 + n % 16
///
/// that is: panels of 16 columns, each contiguous over k. This is the packed-B operand that the
/// 6x16 matmul kernel streams, so writing a weight in NZ *is* packing it. Padding is zero. Leading
/// dimensions stay outside: [E, K, N] is E such matrices. Blocks are 16 wide for every dtype, so
/// float32 and float64 run the same order of operations. bfloat16 is stored in pairs: Note
/// [FRACTAL_NZ of bfloat16].
enum class Layout : std::uint8_t { kND, kNZ };

inline constexpr std::int64_t kNzBlock = 16;

constexpr std::string_view to_string(Layout layout) {
  return layout == Layout::kNZ ? "FRACTAL_NZ" : "ND";
}
inline std::ostream& operator<<(std::ostream& out, Layout layout) {
  return out << to_string(layout);
}

constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Elements that one NZ matrix [k, n] of float32 or float64 occupies, padding included.
constexpr std::int64_t nz_numel(std::int64_t k, std::int64_t n) {
  return round_up(k, kNzBlock) * round_up(n, kNzBlock);
}

/// The position of element (k, n) in an NZ matrix with `rows` rows of float32 or float64.
constexpr std::int64_t nz_offset(std::int64_t k, std::int64_t n, std::int64_t rows) {
  return n / kNzBlock * round_up(rows, kNzBlock) * kNzBlock + k * kNzBlock + n % kNzBlock;
}

/// Which two rows of a unit of 32 make up a 32-bit word.
///
///     kNeighbours  word i: row 2 i in the lower half, row 2 i + 1 in the upper one. For AMX.
///     kChains      words of the even rows, then those of the odd ones, each with two successive
///                  rows of its kind, the earlier in the upper half: (2, 0), (6, 4), ..., (30, 28),
///                  (3, 1), (7, 5), ..., (31, 29). For all other kernels.
enum class PairOrder : std::uint8_t { kNeighbours, kChains };

/// How the bfloat16 matrices of an NZ storage lie in memory.
///
/// Note [FRACTAL_NZ of bfloat16]
/// What a product of bfloat16 reads as its right operand (Note [bfloat16 products]) is words, each
/// a pair of elements that follow each other in the sum. A matrix [K, N], or its transpose, is cut
/// into panels of 16 columns, a panel into units of 32 rows, and a unit is 16 words for each
/// column, word by word:
///
///     word(u, w, c) of panel p = p * K32 * 8 + (u * 16 + w) * 16 + c
///
/// K32 is the number of rows rounded up to 32. Rows and columns that do not exist are zero. Which
/// rows a word holds depends on the kernel that reads it, and which of the two matrices it is on
/// the product: that of the forward or that of the input's gradient. So the storage says both. A
/// matrix takes K32 * N32 elements either way, and its bytes may be written anew in the other form.
struct NzPairs {
  PairOrder order = PairOrder::kChains;
  bool transposed = false;  // the matrix is the transpose, [N, K]
  friend bool operator==(const NzPairs&, const NzPairs&) = default;
};

inline constexpr std::int64_t kNzUnit = 32;

/// The place of row `k` of a unit, in halves of words: 2 * word + (1 if it is the upper half).
constexpr std::int64_t place_in_unit(PairOrder order, std::int64_t k) {
  if (order == PairOrder::kNeighbours) return k;
  const auto i = k / 2;  // among the even rows, or the odd ones
  return 2 * (k % 2 * (kNzUnit / 4) + i / 2) + 1 - i % 2;
}

/// Elements that one NZ matrix [k, n] occupies, padding included.
constexpr std::int64_t nz_numel(std::int64_t k, std::int64_t n, Dtype dtype) {
  return dtype == Dtype::kBFloat16 ? round_up(k, kNzUnit) * round_up(n, kNzUnit) : nz_numel(k, n);
}

/// The stacked matrices [batch, k, n] inside an NZ tensor. They do not depend on its shape: a
/// parameter [E*K, N] and its view [E, K, N] have the same blocks.
struct NzBlocks {
  std::int64_t batch = 0;
  std::int64_t k = 0;
  std::int64_t n = 0;

  constexpr std::int64_t numel(Dtype dtype) const { return batch * nz_numel(k, n, dtype); }
  friend bool operator==(const NzBlocks&, const NzBlocks&) = default;
};

/// The position of element (k, n) in an NZ matrix [blocks.k, blocks.n] of bfloat16.
constexpr std::int64_t nz_offset(std::int64_t k, std::int64_t n, const NzBlocks& blocks,
                                 NzPairs pairs) {
  const auto row = pairs.transposed ? n : k, column = pairs.transposed ? k : n;
  const auto rows = round_up(pairs.transposed ? blocks.n : blocks.k, kNzUnit);
  const auto place = place_in_unit(pairs.order, row % kNzUnit);
  return column / kNzBlock * kNzBlock * rows + row / kNzUnit * kNzUnit * kNzBlock +
         (place / 2 * kNzBlock + column % kNzBlock) * 2 + place % 2;
}

}  // namespace moegrad
