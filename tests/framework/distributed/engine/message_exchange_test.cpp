// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/engine/message_exchange.h"

#include <numeric>

#include "framework/distributed/engine/call_bytes.h"
#include "framework/distributed/engine/message_header.h"
#include "tests/testing.h"

namespace moegrad::message_exchange_test {
namespace {

TEST(MessageExchange, CarriesAPayloadInTheHeaderOrInMessagesAndNeverInNeither) {
  for (const auto bytes : {std::size_t{0}, std::size_t{4}, kInlineBytes, kInlineBytes + 4}) {
    const std::vector<std::byte> input(bytes);
    CollectiveCall call;
    call.op = CollectiveOp::kAllGather;
    call.input = input;
    const auto segments = segments_of(call, 0, 1, 2);
    const auto sent = std::accumulate(segments.begin(), segments.end(), std::int64_t{0});
    EXPECT_EQ(inline_payload(call, 0, 1, 2).size(), bytes > kInlineBytes ? 0 : bytes);
    EXPECT_EQ(sent, bytes > kInlineBytes ? std::ssize(input) : 0);
  }
}

TEST(MessageExchange, CutsAPayloadIntoNoMoreSegmentsThanAHeaderHasRoomFor) {
  const std::vector<std::byte> run(512 << 10);
  CollectiveCall call;
  call.op = CollectiveOp::kAllToAll;
  call.dtype = Dtype::kFloat32;
  for (const std::size_t runs : {kMostSegments, kMostSegments + 1}) {
    call.parts.assign(runs, run);
    const auto bytes = static_cast<std::int64_t>(runs * run.size());
    call.send_counts = {0, bytes / 4};
    const auto segments = segments_of(call, 0, 1, 2);
    EXPECT_EQ(segments.size(), runs > kMostSegments ? 1U : runs);
    EXPECT_EQ(std::accumulate(segments.begin(), segments.end(), std::int64_t{0}), bytes);
  }
}

}  // namespace
}  // namespace moegrad::message_exchange_test
