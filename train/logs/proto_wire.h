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

}  // namespace moegrad::training
