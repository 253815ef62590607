// SPDX-License-Identifier: Apache-2.0
#include "train/logs/proto_wire.h"

#include <bit>
#include <cstring>
#include <type_traits>

#include "framework/runtime/error.h"

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

template <class T>
T fixed(std::string_view bytes) {
  T value = {};
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
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

bool ProtoReader::next() {
  if (rest_.empty()) return false;
  const auto key = take_varint();
  field_ = key >> 3;
  type_ = key & 7;
  check<ValueError>(field_ != 0, who_, ": must be a protocol buffer, got field number 0");
  switch (type_) {
    case kVarint:
      varint_ = take_varint();
      break;
    case kFixed64:
      bytes_ = take(8);
      break;
    case kBytes:
      bytes_ = take(take_varint());
      break;
    case kFixed32:
      bytes_ = take(4);
      break;
    default:
      check<ValueError>(false, who_, ": must be a protocol buffer, got wire type ", type_);
  }
  return true;
}

std::uint64_t ProtoReader::varint() const {
  require_type(kVarint);
  return varint_;
}

float ProtoReader::float32() const {
  require_type(kFixed32);
  return fixed<float>(bytes_);
}

double ProtoReader::float64() const {
  require_type(kFixed64);
  return fixed<double>(bytes_);
}

std::string_view ProtoReader::bytes() const {
  require_type(kBytes);
  return bytes_;
}

void ProtoReader::append_doubles(std::vector<double>& values) const {
  if (type_ != kFixed64) require_type(kBytes);
  check<ValueError>(bytes_.size() % 8 == 0, who_, ": field ", field_,
                    " must hold doubles of 8 bytes, got ", bytes_.size(), " bytes");
  for (std::size_t i = 0; i < bytes_.size(); i += 8) {
    values.push_back(fixed<double>(bytes_.substr(i)));
  }
}

std::uint64_t ProtoReader::take_varint() {
  std::uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = static_cast<unsigned char>(take(1)[0]);
    check<ValueError>(shift < 63 || byte <= 1, who_,
                      ": must be a protocol buffer, got a varint of more than 64 bits");
    value |= std::uint64_t{byte & 0x7fU} << shift;
    if (byte < 0x80) return value;
  }
}

std::string_view ProtoReader::take(std::uint64_t size) {
  check<ValueError>(size <= rest_.size(), who_,
                    ": must be a protocol buffer, got a field cut short");
  const auto taken = rest_.substr(0, size);
  rest_.remove_prefix(size);
  return taken;
}

void ProtoReader::require_type(std::uint64_t type) const {
  check<ValueError>(type_ == type, who_, ": field ", field_, " must have wire type ", type,
                    ", got ", type_);
}

}  // namespace moegrad::training
