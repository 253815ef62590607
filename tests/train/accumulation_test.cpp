// SPDX-License-Identifier: Apache-2.0
#include "train/accumulation.h"

#include <algorithm>
#include <numeric>

#include "tests/testing.h"

namespace moegrad::training::accumulation_test {
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

TEST(OwnedMicroBatches, AreEachOwnedOnceAndTheRestIsIdle) {
  for (const auto accumulation :
       {Accumulation::kKeepUntilLast, Accumulation::kReduceEach, Accumulation::kScatterEach}) {
    for (const int replicas : {1, 2, 3}) {
      for (const int shards : {1, 3, 4}) {
        for (const std::int64_t count : {1, 4, 8, 24, 32}) {
          Indices all;
          const auto ranks = replicas * shards;
          for (int rank = 0; rank < ranks; ++rank) {
            const GridPlace place = {rank / shards, replicas, rank % shards, shards};
            const auto own = owned_micro_batches(count, place, accumulation);
            EXPECT_EQ(std::ssize(own), (count + ranks - 1) / ranks);
            all.insert(all.end(), own.begin(), own.end());
          }
          std::erase(all, kIdle);
          std::ranges::sort(all);
          Indices expected(static_cast<std::size_t>(count));
          std::iota(expected.begin(), expected.end(), 0);
          EXPECT_EQ(all, expected);
        }
      }
    }
  }
}

}  // namespace
}  // namespace moegrad::training::accumulation_test
