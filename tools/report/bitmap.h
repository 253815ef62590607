// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace moegrad::tools {

struct Rgb {
  std::uint8_t red = 0;
  std::uint8_t green = 0;
  std::uint8_t blue = 0;
};
using Palette = std::array<Rgb, 16>;

/// Base64 as in RFC 4648, section 4.
std::string base64(std::string_view bytes);

/// A picture as a data URI. rows [height][width], from the lowest one upwards, are indices into the
/// palette. There is at least one row, and all rows have the same width.
///
/// The format is BMP with 4 bits per pixel: only a header and the rows. Half a byte per pixel is
/// small enough, and no compressor is needed.
std::string bitmap_uri(const std::vector<std::vector<std::uint8_t>>& rows, const Palette& palette);

}  // namespace moegrad::tools
