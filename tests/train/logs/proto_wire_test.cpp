// SPDX-License-Identifier: Apache-2.0
#include "train/logs/proto_wire.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "framework/runtime/error.h"
#include "tests/testing.h"

namespace moegrad::training::proto_wire_test {
namespace {

using test::message_of;

constexpr auto kMost = std::numeric_limits<std::uint64_t>::max();

std::string bytes(std::initializer_list<int> values) {
  std::string text;
  for (const int value : values) text += static_cast<char>(value);
  return text;
}

// Steps over all fields.
std::string refusal(const std::string& message) {
  const std::string who = "here";
  ProtoReader fields(message, who);
  return message_of<ValueError>([&] {
    while (fields.next()) {
    }
  });
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
  EXPECT_EQ(writer.message(), bytes({0x08, 0x96, 0x01}) + "\x12\x07testing" +
                                  bytes({0x1d, 0, 0, 0x80, 0x3f}) +
                                  bytes({0x21, 0, 0, 0, 0, 0, 0, 0, 0xc0}) + bytes({0x2a, 0}) +
                                  bytes({0x80, 0x01, 0}));
}

TEST(ProtoReader, ReadsWhatTheWriterWrites) {
  const std::string text(300, 'x');
  const double values[] = {1.5, -0.0, INFINITY};
  ProtoWriter writer;
  for (const auto value : {std::uint64_t{0}, std::uint64_t{127}, std::uint64_t{128}, kMost}) {
    writer.add_varint(1, value);
  }
  writer.add_float(1'000'000, -0.25F);
  writer.add_double(2, 1e300);
  writer.add_bytes(3, text);
  writer.add_doubles(4, values);
  writer.add_double(4, 7);

  const std::string who = "here";
  ProtoReader fields(writer.message(), who);
  for (const auto value : {std::uint64_t{0}, std::uint64_t{127}, std::uint64_t{128}, kMost}) {
    ASSERT_TRUE(fields.next());
    EXPECT_EQ(fields.field(), 1U);
    EXPECT_EQ(fields.varint(), value);
  }
  ASSERT_TRUE(fields.next());
  EXPECT_EQ(fields.field(), 1'000'000U);
  EXPECT_EQ(fields.float32(), -0.25F);
  ASSERT_TRUE(fields.next());
  EXPECT_EQ(fields.float64(), 1e300);
  ASSERT_TRUE(fields.next());
  EXPECT_EQ(fields.bytes(), text);
  std::vector<double> doubles;
  while (fields.next()) fields.append_doubles(doubles);
  EXPECT_EQ(doubles, (std::vector<double>{1.5, 0, INFINITY, 7}));
  EXPECT_TRUE(std::signbit(doubles[1]));
}

TEST(ProtoReader, RefusesWhatIsNoMessage) {
  const std::string who = "here: must be a protocol buffer, got ";
  EXPECT_EQ(refusal(bytes({0x00, 0x01})), who + "field number 0");
  EXPECT_EQ(refusal(bytes({0x0b})), who + "wire type 3");
  EXPECT_EQ(refusal(bytes({0x0f})), who + "wire type 7");
  const auto most = bytes({0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff});
  EXPECT_EQ(refusal(most + bytes({0x02})), who + "a varint of more than 64 bits");
  EXPECT_EQ(refusal(most + bytes({0x80, 0x00})), who + "a varint of more than 64 bits");
  for (const auto& cut :
       {bytes({0x80}), bytes({0x08}), bytes({0x08, 0x80}), bytes({0x0d, 1, 2, 3}),
        bytes({0x09, 1, 2, 3, 4, 5, 6, 7}), bytes({0x0a}), bytes({0x0a, 3, 1, 2}),
        "\x0a" + bytes({0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01})}) {
    EXPECT_EQ(refusal(cut), who + "a field cut short");
  }
}

TEST(ProtoReader, RefusesAFieldOfAnotherType) {
  const std::string who = "here";
  ProtoWriter writer;
  writer.add_varint(9, 1);
  ProtoReader number(writer.message(), who);
  number.next();
  std::vector<double> values;
  const std::string got = "here: field 9 must have wire type ";
  EXPECT_EQ(message_of<ValueError>([&] { number.float32(); }), got + "5, got 0");
  EXPECT_EQ(message_of<ValueError>([&] { number.float64(); }), got + "1, got 0");
  EXPECT_EQ(message_of<ValueError>([&] { number.bytes(); }), got + "2, got 0");
  EXPECT_EQ(message_of<ValueError>([&] { number.append_doubles(values); }), got + "2, got 0");
  ProtoReader text(
      "\x0a\x09"
      "123456789",
      who);
  text.next();
  EXPECT_EQ(message_of<ValueError>([&] { text.varint(); }),
            "here: field 1 must have wire type 0, got 2");
  EXPECT_EQ(message_of<ValueError>([&] { text.append_doubles(values); }),
            "here: field 1 must hold doubles of 8 bytes, got 9 bytes");
}

}  // namespace
}  // namespace moegrad::training::proto_wire_test
