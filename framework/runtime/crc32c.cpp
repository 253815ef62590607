// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__SSE4_2__)
#include <nmmintrin.h>
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

namespace moegrad {
namespace {

static_assert(std::endian::native == std::endian::little);

#if defined(__SSE4_2__)

std::uint32_t append(std::uint32_t crc, std::byte byte) {
  return _mm_crc32_u8(crc, static_cast<std::uint8_t>(byte));
}

std::uint32_t append(std::uint32_t crc, std::uint64_t eight) {
  return static_cast<std::uint32_t>(_mm_crc32_u64(crc, eight));
}

#elif defined(__ARM_FEATURE_CRC32)

std::uint32_t append(std::uint32_t crc, std::byte byte) {
  return __crc32cb(crc, static_cast<std::uint8_t>(byte));
}

std::uint32_t append(std::uint32_t crc, std::uint64_t eight) { return __crc32cd(crc, eight); }

#else

// kTables[i][b]: what byte b contributes when i more bytes follow it.
constexpr auto kTables = [] {
  constexpr std::uint32_t kReversedPolynomial = 0x82f63b78;
  std::array<std::array<std::uint32_t, 256>, 8> tables{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? kReversedPolynomial : 0);
    tables[0][b] = crc;
  }
  for (std::size_t i = 1; i < tables.size(); ++i) {
    for (std::size_t b = 0; b < 256; ++b) {
      const auto crc = tables[i - 1][b];
      tables[i][b] = crc >> 8 ^ tables[0][crc & 0xff];
    }
  }
  return tables;
}();

std::uint32_t append(std::uint32_t crc, std::byte byte) {
  return crc >> 8 ^ kTables[0][(crc ^ static_cast<std::uint32_t>(byte)) & 0xff];
}

std::uint32_t append(std::uint32_t crc, std::uint64_t eight) {
  eight ^= crc;
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < 8; ++i) sum ^= kTables[7 - i][eight >> 8 * i & 0xff];
  return sum;
}

#endif

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before) {
  std::uint32_t crc = ~before;
  while (bytes.size() >= 8) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, bytes.data(), 8);
    crc = append(crc, eight);
    bytes = bytes.subspan(8);
  }
  for (const auto byte : bytes) crc = append(crc, byte);
  return ~crc;
}

}  // namespace moegrad
