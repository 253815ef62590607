// SPDX-License-Identifier: Apache-2.0
#include "train/logs/proto_wire.h"

#include <bit>
#include <cstring>
#include <type_traits>

namespace moegrad::training {
namespace {

static_assert(std::endian::native == std::endian::little);

// The wire types. 3 and 4, the groups, have not been written since 2008.
constexpr std::uint64_t kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;

void append_varint(std::string& message, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) message += static_cast<char>((value & 0x7f) | 0x80);
  message += static_cast<char>(value);
}

void append_key(std::string& message, std::uint32_t field, std::uint64_t type) {
  append_varint(message, std::uint64_t{field} << 3 | type);
}

template <class T>
void append_fixed(std::string& message, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  message.append(bytes, sizeof value);
}

}  // namespace

void ProtoWriter::add_varint(std::uint32_t field, std::uint64_t value) {
  append_key(message_, field, kVarint);
  append_varint(message_, value);
}

void ProtoWriter::add_float(std::uint32_t field, float value) {
  append_key(message_, field, kFixed32);
  append_fixed(message_, value);
}

void ProtoWriter::add_double(std::uint32_t field, double value) {
  append_key(message_, field, kFixed64);
  append_fixed(message_, value);
}

void ProtoWriter::add_bytes(std::uint32_t field, std::string_view value) {
  append_key(message_, field, kBytes);
  append_varint(message_, value.size());
  message_ += value;
}

void ProtoWriter::add_doubles(std::uint32_t field, std::span<const double> values) {
  append_key(message_, field, kBytes);
  append_varint(message_, values.size_bytes());
  for (const auto value : values) append_fixed(message_, value);
}

}  // namespace moegrad::training
