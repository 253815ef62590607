// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/byte_stream.h"

namespace moegrad {

void ByteWriter::append(std::span<const std::byte> bytes) {
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

void ByteWriter::put(std::string_view text) {
  put(std::ssize(text));
  append(std::as_bytes(std::span(text)));
}

void ByteReader::get(std::string& text) {
  const auto bytes = next(static_cast<std::size_t>(size("text")));
  text.resize(bytes.size());
  std::memcpy(text.data(), bytes.data(), bytes.size());
}

std::ptrdiff_t ByteReader::size(std::string_view of) {
  std::ptrdiff_t size = 0;
  get(size);
  check(size >= 0, "byte stream: a ", of, " must have a size of at least 0, got ", size);
  return size;
}

std::span<const std::byte> ByteReader::next(std::size_t size) {
  check(size <= bytes_.size(), "byte stream: must have ", size, " more bytes, got ", bytes_.size());
  const auto read = bytes_.first(size);
  bytes_ = bytes_.subspan(size);
  return read;
}

}  // namespace moegrad
