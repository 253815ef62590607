// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/engine/message_header.h"

#include <algorithm>
#include <array>

#include "tests/testing.h"

namespace moegrad::message_header_test {
namespace {

// The longest of everything at once.
MessageHeader longest() {
  MessageHeader header;
  header.sends = -1;
  header.expects = -2;
  header.received = 1;
  header.deadline_ms = 2;
  header.group_id = 3;
  header.request.op = CollectiveOp::kAllToAll;
  header.request.dtype = Dtype::kBFloat16;
  header.request.reduce = ReduceOp::kMax;
  header.request.count = std::int64_t{1} << 40;
  header.request.root = 5;
  header.request.round = -6;
  header.request.sequence = 7;
  header.request.label = header_label(std::string(100'000, 'x'));
  header.segments.assign(kMostSegments, std::int64_t{1} << 50);
  return header;
}

TEST(MessageHeader, ComesBackAsItWasWrittenHoweverLong) {
  std::vector<std::byte> payload(kInlineBytes);
  for (std::size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::byte>(i);
  alignas(16) std::array<std::byte, kHeaderBytes> message;
  const auto header = longest();
  const auto size = encode(header, payload, message);
  ASSERT_LE(size, kHeaderBytes);
  std::span<const std::byte> found;
  const auto decoded = decode(std::span(message).first(size), found);
  EXPECT_TRUE(std::ranges::equal(found, payload));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(found.data()) % 16, 0U);
  EXPECT_TRUE(agree(decoded.request, header.request));
  EXPECT_EQ(decoded.request.sequence, 7);
  EXPECT_EQ(decoded.request.root, 5);
  EXPECT_EQ(decoded.sends, -1);
  EXPECT_EQ(decoded.expects, -2);
  EXPECT_EQ(decoded.received, 1);
  EXPECT_EQ(decoded.deadline_ms, 2);
  EXPECT_EQ(decoded.group_id, 3);
  EXPECT_EQ(decoded.segments, header.segments);
}

TEST(MessageHeader, CarriesNoPayloadThatIsTooLong) {
  const std::vector<std::byte> payload(kInlineBytes + 1);
  alignas(16) std::array<std::byte, kHeaderBytes> message;
  std::span<const std::byte> found = payload;
  decode(std::span(message).first(encode({}, payload, message)), found);
  EXPECT_TRUE(found.empty());
}

TEST(MessageHeader, OfAnotherSizeIsRefused) {
  alignas(16) std::array<std::byte, kHeaderBytes> message;
  const auto size = encode(longest(), {}, message);
  std::span<const std::byte> payload;
  for (const auto cut : {std::size_t{0}, std::size_t{15}, size - 1}) {
    EXPECT_THROW(decode(std::span(message).first(cut), payload), Error) << cut;
  }
}

TEST(MessageHeader, ComparesLongLabelsByAChecksum) {
  const std::string a(2'000, 'a');
  EXPECT_EQ(header_label("layers.1"), "layers.1");
  EXPECT_NE(header_label(a + "b"), header_label(a + "c"));
  EXPECT_EQ(header_label(a), header_label(a));
}

}  // namespace
}  // namespace moegrad::message_header_test
