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
  void number(T value) { append(std::as_bytes(std::span(&value, 1))); }
  void text(std::string_view text);
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  void append(std::span<const std::byte> bytes);

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
  std::string text();
  bool at_end() const { return bytes_.empty(); }

 private:
  std::span<const std::byte> next(std::size_t size);

  std::span<const std::byte> bytes_;
};

}  // namespace moegrad
