// SPDX-License-Identifier: Apache-2.0
#include "tools/report/bitmap.h"

namespace moegrad::tools {
namespace {

constexpr std::size_t kHeader = 14 + 40 + 4 * std::tuple_size_v<Palette>;

void append_little_endian(std::string& bytes, std::size_t value, int count) {
  for (int i = 0; i < count; ++i) bytes += static_cast<char>((value >> (8 * i)) & 0xFF);
}

// BITMAPFILEHEADER, BITMAPINFOHEADER and the palette.
std::string header(std::size_t width, std::size_t height, std::size_t pixel_bytes,
                   const Palette& palette) {
  std::string bytes = "BM";
  append_little_endian(bytes, kHeader + pixel_bytes, 4);
  append_little_endian(bytes, 0, 4);
  append_little_endian(bytes, kHeader, 4);
  append_little_endian(bytes, 40, 4);  // of what follows without the palette
  append_little_endian(bytes, width, 4);
  append_little_endian(bytes, height, 4);
  append_little_endian(bytes, 1, 2);  // plane
  append_little_endian(bytes, 4, 2);  // bits per pixel
  append_little_endian(bytes, 0, 4);  // no compression
  append_little_endian(bytes, pixel_bytes, 4);
  append_little_endian(bytes, 0, 8);  // no size on paper
  append_little_endian(bytes, palette.size(), 4);
  append_little_endian(bytes, 0, 4);
  for (const auto& [red, green, blue] : palette) {
    for (const auto part : {blue, green, red}) bytes += static_cast<char>(part);
    bytes += '\0';
  }
  return bytes;
}

}  // namespace

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t three = 0;
    for (std::size_t j = i; j < i + 3; ++j) {
      three = three << 8 | (j < bytes.size() ? static_cast<unsigned char>(bytes[j]) : 0U);
    }
    for (std::size_t j = 0; j < 4; ++j) {
      text += i + j > bytes.size() ? '=' : kDigits[three >> (18 - 6 * j) & 63];
    }
  }
  return text;
}

std::string bitmap_uri(const std::vector<std::vector<std::uint8_t>>& rows, const Palette& palette) {
  const auto width = rows[0].size();
  const auto row_bytes = (width + 7) / 8 * 4;  // a multiple of 4
  std::string bytes = header(width, rows.size(), row_bytes * rows.size(), palette);
  for (const auto& row : rows) {
    std::string packed(row_bytes, '\0');
    for (std::size_t i = 0; i < width; ++i) {
      const int shift = i % 2 == 0 ? 4 : 0;
      packed[i / 2] = static_cast<char>(packed[i / 2] | row[i] << shift);
    }
    bytes += packed;
  }
  return "data:image/bmp;base64," + base64(bytes);
}

}  // namespace moegrad::tools
