// SPDX-License-Identifier: Apache-2.0
#include "examples/accumulation.h"

#include <algorithm>
#include <numeric>

#include "framework/runtime/error.h"
#include "tests/testing.h"

namespace moegrad::examples {
namespace {

using Indices = std::vector<std::int64_t>;

constexpr GridPlace kPlace = {.replica = 1, .replicas = 2, .shard = 0, .shards = 2};

TEST(OwnedMicroBatches, AreASubtreeWhenGradientsAreKept) {
  EXPECT_EQ(owned_micro_batches(16, kPlace, Accumulation::kKeepUntilLast), (Indices{8, 9, 10, 11}));
}

TEST(OwnedMicroBatches, AreOneOfEachRoundWhenEachIsReduced) {
  EXPECT_EQ(owned_micro_batches(16, kPlace, Accumulation::kReduceEach), (Indices{2, 6, 10, 14}));
}

TEST(OwnedMicroBatches, AreOneOfEachRoundOfTheReplicaWhenEachIsScattered) {
  EXPECT_EQ(owned_micro_batches(16, kPlace, Accumulation::kScatterEach), (Indices{8, 10, 12, 14}));
}

TEST(OwnedMicroBatches, AreEachOwnedOnce) {
  for (const auto accumulation :
       {Accumulation::kKeepUntilLast, Accumulation::kReduceEach, Accumulation::kScatterEach}) {
    Indices all;
    for (int replica = 0; replica < 2; ++replica) {
      for (int shard = 0; shard < 4; ++shard) {
        const auto own = owned_micro_batches(
            32, {.replica = replica, .replicas = 2, .shard = shard, .shards = 4}, accumulation);
        all.insert(all.end(), own.begin(), own.end());
      }
    }
    std::ranges::sort(all);
    Indices expected(32);
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(all, expected);
  }
}

TEST(OwnedMicroBatches, MustBeAsManyOnEveryRank) {
  EXPECT_EQ(testing::message_of<ValueError>(
                [] { owned_micro_batches(4, {.shards = 3}, Accumulation::kReduceEach); }),
            "micro-batches: 4 cannot be spread evenly over 3 ranks");
}

}  // namespace
}  // namespace moegrad::examples
