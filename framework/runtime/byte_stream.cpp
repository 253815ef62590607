// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/byte_stream.h"

namespace moegrad {

void ByteWriter::append(std::span<const std::byte> bytes) {
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

void ByteWriter::text(std::string_view text) {
  number(std::ssize(text));
  append(std::as_bytes(std::span(text)));
}

std::string ByteReader::text() {
  const auto size = number<std::ptrdiff_t>();
  check(size >= 0, "byte stream: a text must have at least 0 bytes, got ", size);
  const auto bytes = next(static_cast<std::size_t>(size));
  std::string text(bytes.size(), '\0');
  std::memcpy(text.data(), bytes.data(), bytes.size());
  return text;
}

std::span<const std::byte> ByteReader::next(std::size_t size) {
  check(size <= bytes_.size(), "byte stream: must have ", size, " more bytes, got ", bytes_.size());
  const auto read = bytes_.first(size);
  bytes_ = bytes_.subspan(size);
  return read;
}

}  // namespace moegrad
