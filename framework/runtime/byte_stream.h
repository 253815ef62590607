// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "framework/runtime/error.h"

namespace moegrad {

/// Numbers and texts as bytes, one after the other, for a rank of the same program to read.
class ByteWriter {
 public:
  template <class T>
  requires std::is_arithmetic_v<T>
  void number(T value) {
    const auto bytes = std::as_bytes(std::span(&value, 1));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void text(std::string_view text) {
    number(std::ssize(text));
    const auto bytes = std::as_bytes(std::span(text));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

/// Reads in the same order what a ByteWriter has written. Error past the end.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class T>
  requires std::is_arithmetic_v<T> T number() {
    T value;
    std::memcpy(&value, next(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string text() {
    const auto size = number<std::ptrdiff_t>();
    check(size >= 0, "byte stream: a text must have at least 0 bytes, got ", size);
    const auto bytes = next(static_cast<std::size_t>(size));
    std::string text(bytes.size(), '\0');
    std::memcpy(text.data(), bytes.data(), bytes.size());
    return text;
  }
  bool at_end() const { return bytes_.empty(); }

 private:
  std::span<const std::byte> next(std::size_t size) {
    check(size <= bytes_.size(), "byte stream: must have ", size, " more bytes, got ",
          bytes_.size());
    const auto read = bytes_.first(size);
    bytes_ = bytes_.subspan(size);
    return read;
  }

  std::span<const std::byte> bytes_;
};

}  // namespace moegrad
