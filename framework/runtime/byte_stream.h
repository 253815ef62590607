// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "framework/runtime/error.h"

namespace moegrad {

/// Values whose bytes say all: numbers, enums, times, and arrays of these.
template <class T>
inline constexpr bool kIsPlain = std::is_arithmetic_v<T> || std::is_enum_v<T>;
template <class Rep, class Period>
inline constexpr bool kIsPlain<std::chrono::duration<Rep, Period>> = true;
template <class Clock, class Duration>
inline constexpr bool kIsPlain<std::chrono::time_point<Clock, Duration>> = true;
template <class T, std::size_t n>
inline constexpr bool kIsPlain<std::array<T, n>> = kIsPlain<T>;

/// A record that is written, and then constant, or read.
template <class T, class Record>
concept Like = std::same_as<std::remove_const_t<T>, Record>;

/// Writes values as bytes, one after the other, for a rank of the same program to read: plain ones
/// as they are, texts and vectors after their size. A record names its members, once for writing
/// and reading, in its own namespace:
///
///     void members(auto& stream, Like<Point> auto& point) { stream(point.x, point.y); }
class ByteWriter {
 public:
  template <class... Values>
  void operator()(const Values&... values) {
    (put(values), ...);
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  template <class T>
  void put(const T& value) {
    if constexpr (kIsPlain<T>) {
      append(std::as_bytes(std::span(&value, 1)));
    } else {
      members(*this, value);
    }
  }
  template <class T>
  void put(const std::vector<T>& values) {
    put(std::ssize(values));
    for (const auto& value : values) put(value);
  }
  void put(std::string_view text);
  void put(const std::string& text) { put(std::string_view(text)); }
  void append(std::span<const std::byte> bytes);

  std::vector<std::byte> bytes_;
};

/// Reads in the same order what a ByteWriter has written. Error past the end.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class... Values>
  void operator()(Values&... values) {
    (get(values), ...);
  }
  bool at_end() const { return bytes_.empty(); }

 private:
  template <class T>
  void get(T& value) {
    if constexpr (kIsPlain<T>) {
      std::memcpy(&value, next(sizeof(T)).data(), sizeof(T));
    } else {
      members(*this, value);
    }
  }
  template <class T>
  void get(std::vector<T>& values) {
    for (auto left = size("vector"); left > 0; --left) get(values.emplace_back());
  }
  void get(std::string& text);
  std::ptrdiff_t size(std::string_view of);
  std::span<const std::byte> next(std::size_t size);

  std::span<const std::byte> bytes_;
};

/// The values as a ByteWriter writes them.
template <class... Values>
std::vector<std::byte> to_bytes(const Values&... values) {
  ByteWriter writer;
  writer(values...);
  return writer.take();
}

}  // namespace moegrad
