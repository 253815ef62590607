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

/// RFC 4648, section 4.
std::string base64(std::string_view bytes);

/// A picture as a data URI. rows [height][width], from the lowest one upwards, are places in the
/// palette; all are of one width, and there is a row.
///
/// It is a BMP of 4 bits per pixel: half a byte each without a compressor of our own, which is
/// small enough, and nothing but the rows and a header.
std::string bitmap_uri(const std::vector<std::vector<std::uint8_t>>& rows, const Palette& palette);

}  // namespace moegrad::tools
