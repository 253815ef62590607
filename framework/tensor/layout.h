// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <ostream>
#include <string_view>

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
/// float32 and float64 run the same order of operations.
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

/// Elements that one NZ matrix [k, n] occupies, padding included.
constexpr std::int64_t nz_numel(std::int64_t k, std::int64_t n) {
  return round_up(k, kNzBlock) * round_up(n, kNzBlock);
}

/// The position of element (k, n) in an NZ matrix with `rows` rows.
constexpr std::int64_t nz_offset(std::int64_t k, std::int64_t n, std::int64_t rows) {
  return n / kNzBlock * round_up(rows, kNzBlock) * kNzBlock + k * kNzBlock + n % kNzBlock;
}

/// The stacked matrices [batch, k, n] inside an NZ tensor. They do not depend on its shape: a
/// parameter [E*K, N] and its view [E, K, N] have the same blocks.
struct NzBlocks {
  std::int64_t batch = 0;
  std::int64_t k = 0;
  std::int64_t n = 0;

  constexpr std::int64_t numel() const { return batch * nz_numel(k, n); }
  friend bool operator==(const NzBlocks&, const NzBlocks&) = default;
};

}  // namespace moegrad
