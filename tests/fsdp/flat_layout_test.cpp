// SPDX-License-Identifier: Apache-2.0
#include "fsdp/flat_layout.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "framework/distributed/shard_spec.h"

namespace moegrad::fsdp::flat_layout_test {
namespace {

std::vector<std::int64_t> sizes(std::int64_t rows, int world_size) {
  std::vector<std::int64_t> result;
  for (int rank = 0; rank < world_size; ++rank) {
    result.push_back(shard_range(rows, world_size, rank).size());
  }
  return result;
}

// What torch.chunk gives, read off its documentation: ceil-sized chunks until nothing is left.
TEST(ShardRows, AreCutAsTorchChunkCuts) {
  EXPECT_EQ(sizes(8, 4), (std::vector<std::int64_t>{2, 2, 2, 2}));
  EXPECT_EQ(sizes(7, 4), (std::vector<std::int64_t>{2, 2, 2, 1}));
  EXPECT_EQ(sizes(5, 4), (std::vector<std::int64_t>{2, 2, 1, 0}));
  EXPECT_EQ(sizes(3, 8), (std::vector<std::int64_t>{1, 1, 1, 0, 0, 0, 0, 0}));
  EXPECT_EQ(sizes(1, 1), (std::vector<std::int64_t>{1}));
}

TEST(ShardRows, CoverEveryRowOnceAtAnyWorldSize) {
  for (const int world_size : {1, 2, 3, 4, 7, 8, 128, 256, 512, 1024}) {
    for (const std::int64_t rows : {1, 5, 16, 96, 1000, 4096}) {
      std::int64_t next = 0;
      for (int rank = 0; rank < world_size; ++rank) {
        const auto range = shard_range(rows, world_size, rank);
        EXPECT_EQ(range.begin, std::min(next, rows));
        next = range.end;
      }
      EXPECT_EQ(next, rows) << rows << " rows on " << world_size << " ranks";
    }
  }
}

TEST(FlatLayout, PlacesParametersOneAfterTheOther) {
  const auto layout = make_flat_layout({{{5, 3}}, {{2}}, {{4, 2, 2}}}, 2, 1);
  ASSERT_EQ(layout.entries.size(), 3U);
  EXPECT_EQ(layout.entries[0].offset, 0);
  EXPECT_EQ(layout.entries[1].offset, 9);   // three rows of three
  EXPECT_EQ(layout.entries[2].offset, 10);  // one row of one
  EXPECT_EQ(layout.slice_numel, 18);        // two rows of four
  EXPECT_TRUE(layout.has_padding());
  EXPECT_FALSE(make_flat_layout({{{4, 3}}, {{2}}}, 2, 1).has_padding());
}

TEST(FlatLayout, SeesAParameterAsOuterExtentInner) {
  const auto layout = make_flat_layout({{{3, 8, 5}, 1}, {{3, 8}, 1}, {{6, 2}, 0}}, 4, 1);
  EXPECT_EQ(layout.entries[0].outer, 3);
  EXPECT_EQ(layout.entries[0].extent, 8);
  EXPECT_EQ(layout.entries[0].inner, 5);
  EXPECT_EQ(layout.entries[0].chunk, 2);
  EXPECT_EQ(layout.entries[1].offset, 3 * 2 * 5);
  EXPECT_EQ(layout.entries[1].inner, 1);
  EXPECT_EQ(layout.entries[2].offset, 3 * 2 * 5 + 3 * 2);
  EXPECT_EQ(layout.entries[2].outer, 1);
  EXPECT_EQ(layout.slice_numel, 3 * 2 * 5 + 3 * 2 + 2 * 2);
  EXPECT_EQ(layout.entries[0].numel(), 120);
}

TEST(FlatLayout, AlignsEverySliceOfEveryRank) {
  for (const int world_size : {2, 3, 4, 8}) {
    const auto layout = make_flat_layout({{{50, 24}}, {{7, 8}}, {{96, 16}}}, world_size, 128);
    for (int rank = 0; rank < world_size; ++rank) {
      for (const auto& entry : layout.entries) {
        EXPECT_EQ((rank * layout.slice_numel + entry.offset) % 128, 0) << world_size << " ranks";
      }
    }
  }
}

}  // namespace
}  // namespace moegrad::fsdp::flat_layout_test
