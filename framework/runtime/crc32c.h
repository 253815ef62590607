// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace moegrad {

/// The checksum CRC-32C (Castagnoli) of `bytes`. For a message in pieces, `before` is the checksum
/// of the earlier pieces: crc32c(ab) = crc32c(b, crc32c(a)).
///
/// Reference: RFC 3720, appendix B.4.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace moegrad
