// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "framework/distributed/collectives.h"
#include "framework/distributed/gather_timelines.h"
#include "framework/distributed/launch.h"
#include "framework/runtime/byte_stream.h"
#include "tests/testing.h"

namespace moegrad::gather_bytes_test {
namespace {

using test::message_of;

std::vector<std::byte> bytes(std::size_t count, int seed) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<std::byte>(static_cast<int>(i) * 31 + seed);
  }
  return bytes;
}

TEST(GatherBytes, GivesRankZeroTheBytesOfAllWhateverTheirLengths) {
  for (const std::vector<std::size_t>& lengths :
       {std::vector<std::size_t>{5}, {0}, {0, 3}, {8, 0, 17}, {1, 7, 8, 100'003}}) {
    const auto ranks = static_cast<int>(lengths.size());
    launch(ranks, [&](RankContext& context) {
      const auto rank = static_cast<std::size_t>(context.rank());
      const auto own = bytes(lengths[rank], context.rank());
      const auto all = gather_bytes(*context.group(), own);
      ASSERT_EQ(all.size(), rank == 0 ? lengths.size() : 0);
      for (std::size_t r = 0; r < all.size(); ++r) {
        EXPECT_EQ(all[r], bytes(lengths[r], static_cast<int>(r)));
      }
    });
  }
}

TEST(TextCollectives, GiveEveryRankTheTextsOfAll) {
  const std::vector<std::string> all = {"", std::string("a\0b", 3), "exactly8", "and a longer one"};
  for (int world_size = 1; world_size <= 4; ++world_size) {
    launch(world_size, [&](RankContext& context) {
      const auto rank = static_cast<std::size_t>(context.rank());
      const auto texts = all_gather_texts(context.group(), all[rank]);
      EXPECT_EQ(texts, std::vector<std::string>(all.begin(), all.begin() + world_size));
      const auto empty = all_gather_texts(context.group(), "");
      EXPECT_EQ(empty, std::vector<std::string>(static_cast<std::size_t>(world_size)));
    });
  }
  EXPECT_EQ(all_gather_texts(nullptr, "alone"), std::vector<std::string>{"alone"});
}

TEST(TextCollectives, NameTheRanksThatDiffer) {
  EXPECT_EQ(ranks_that_differ({"a"}), "");
  EXPECT_EQ(ranks_that_differ({"a", "a", "a"}), "");
  EXPECT_EQ(ranks_that_differ({"a", "b", "a", ""}), "1, 3");
}

TEST(GatherTimelines, ComeAsTheyWere) {
  const auto timeline = [](int rank) {
    RankTimeline own;
    for (int i = 0; i <= rank; ++i) {
      own.spans.push_back({.name = "span " + std::to_string(i),
                           .kind = SpanKind::kCollective,
                           .lane = Lane::kReduce,
                           .begin = SpanClock::time_point(SpanClock::duration(100 + i)),
                           .end = SpanClock::time_point(SpanClock::duration(200 + rank)),
                           .busy = std::chrono::nanoseconds(7),
                           .bytes = 1 << (20 + rank),
                           .group = rank == 0 ? "" : "world",
                           .sequence = i - 1});
      own.step_begins.push_back(SpanClock::time_point(SpanClock::duration(i)));
    }
    own.peak_bytes.back() = 50 + rank;
    own.peak_total = 90 + rank;
    return own;
  };
  launch(3, [&](RankContext& context) {
    const auto all = gather_timelines(*context.group(), timeline(context.rank()));
    ASSERT_EQ(all.size(), context.rank() == 0 ? 3U : 0U);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      const auto& got = all[rank];
      const auto expected = timeline(static_cast<int>(rank));
      ASSERT_EQ(got.spans.size(), expected.spans.size());
      for (std::size_t i = 0; i < got.spans.size(); ++i) {
        const auto &a = got.spans[i], &b = expected.spans[i];
        EXPECT_EQ(
            std::tie(a.name, a.kind, a.lane, a.begin, a.end, a.busy, a.bytes, a.group, a.sequence),
            std::tie(b.name, b.kind, b.lane, b.begin, b.end, b.busy, b.bytes, b.group, b.sequence));
      }
      EXPECT_EQ(got.step_begins, expected.step_begins);
      EXPECT_EQ(got.peak_bytes, expected.peak_bytes);
      EXPECT_EQ(got.peak_total, expected.peak_total);
    }
  });
}

TEST(ByteStream, ReadsInOrderAndNotPastTheEnd) {
  const auto written = to_bytes(std::int64_t{-3}, std::string(), std::string("a\0b", 3),
                                std::vector<std::string>{"x", "yz"}, ReduceOp::kMax, 0.5);
  ByteReader reader(written);
  std::int64_t number = 0;
  std::string empty = "?", text;
  std::vector<std::string> texts;
  ReduceOp op{};
  reader(number, empty, text, texts, op);
  EXPECT_EQ(number, -3);
  EXPECT_EQ(empty, "");
  EXPECT_EQ(text, std::string("a\0b", 3));
  EXPECT_EQ(texts, (std::vector<std::string>{"x", "yz"}));
  EXPECT_EQ(op, ReduceOp::kMax);
  EXPECT_FALSE(reader.at_end());
  double half = 0;
  reader(half);
  EXPECT_EQ(half, 0.5);
  EXPECT_TRUE(reader.at_end());
  EXPECT_EQ(message_of<Error>([&] { reader(op); }), "byte stream: must have 1 more bytes, got 0");
  EXPECT_EQ(message_of<Error>([&] { ByteReader{written}(text); }),
            "byte stream: a text must have a size of at least 0, got -3");
  EXPECT_EQ(message_of<Error>([&] { ByteReader{written}(texts); }),
            "byte stream: a vector must have a size of at least 0, got -3");
}

}  // namespace
}  // namespace moegrad::gather_bytes_test
