// SPDX-License-Identifier: Apache-2.0
#include "train/logs/proto_wire.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <limits>
#include <string>

namespace moegrad::training::proto_wire_test {
namespace {

std::string bytes(std::initializer_list<int> values) {
  std::string text;
  for (const int value : values) text += static_cast<char>(value);
  return text;
}

// 150 in field 1 and "testing" in field 2 are the examples of the format's description.
TEST(ProtoWriter, WritesTheWireFormat) {
  ProtoWriter writer;
  writer.add_varint(1, 150);
  writer.add_bytes(2, "testing");
  writer.add_float(3, 1);
  writer.add_double(4, -2);
  writer.add_doubles(5, {});
  writer.add_varint(16, 0);
  writer.add_varint(16, std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(writer.message(), bytes({0x08, 0x96, 0x01}) + "\x12\x07testing" +
                                  bytes({0x1d, 0, 0, 0x80, 0x3f}) +
                                  bytes({0x21, 0, 0, 0, 0, 0, 0, 0, 0xc0}) + bytes({0x2a, 0}) +
                                  bytes({0x80, 0x01, 0}) + bytes({0x80, 0x01}) +
                                  std::string(9, '\xff') + bytes({0x01}));
}

}  // namespace
}  // namespace moegrad::training::proto_wire_test
