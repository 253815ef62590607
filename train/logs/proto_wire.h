// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace moegrad::training {

/// Writes a message in the wire format of protocol buffers, field by field. Fields that are zero
/// are written, too.
///
/// Reference: https://protobuf.dev/programming-guides/encoding
class ProtoWriter {
 public:
  void add_varint(std::uint32_t field, std::uint64_t value);
  void add_float(std::uint32_t field, float value);
  void add_double(std::uint32_t field, double value);
  void add_bytes(std::uint32_t field, std::string_view value);            // a string or a message
  void add_doubles(std::uint32_t field, std::span<const double> values);  // packed

  const std::string& message() const { return message_; }

 private:
  std::string message_;
};

/// A cursor over the fields of a message. If the bytes are not a message, throws ValueError
/// `<who>: must be a protocol buffer, got <what>`. Both arguments must outlive this object.
class ProtoReader {
 public:
  ProtoReader(std::string_view message, const std::string& who) : rest_(message), who_(who) {}

  /// Steps to the next field; false at the end of the message.
  bool next();
  std::uint64_t field() const { return field_; }

  /// The value of the field. If it has another type, throws ValueError
  /// `<who>: field <number> must have wire type <type>, got <type>`.
  std::uint64_t varint() const;
  float float32() const;
  double float64() const;
  std::string_view bytes() const;
  /// Appends the values of a repeated field, which may be packed or stored value by value.
  void append_doubles(std::vector<double>& values) const;

 private:
  std::uint64_t take_varint();
  std::string_view take(std::uint64_t size);
  void require_type(std::uint64_t type) const;

  std::string_view rest_;
  const std::string& who_;
  std::uint64_t field_ = 0;
  std::uint64_t type_ = 0;
  std::uint64_t varint_ = 0;  // the value; which member has it depends on type_
  std::string_view bytes_;
};

}  // namespace moegrad::training
