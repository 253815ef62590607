// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/device_mesh.h"
#include "framework/distributed/launch.h"
#include "fsdp/fully_shard.h"
#include "tests/nn/dropping_block.h"

namespace moegrad::fsdp::dropout_ranks_test {
namespace {

using namespace test;

TEST(DropoutRanks, IsTheSameOnAnyNumberOfRanksAndThreads) {
  const auto want = run_whole();
  for (const int ranks : {1, 2, 4}) {
    for (const int threads : {1, 2, 3}) {
      launch(ranks,
             [&](RankContext& rank) {
               DroppingBlock block;
               fully_shard(block, DeviceMesh::flat(rank.group()));
               const auto size = kTokens / ranks, begin = rank.rank() * size;
               const auto part = run_dropping(block, begin, begin + size);
               EXPECT_TRUE(bitwise_equal(part.y, rows_of(want.y, begin, begin + size))) << ranks;
               EXPECT_TRUE(bitwise_equal(part.grad, rows_of(want.grad, begin, begin + size)))
                   << ranks;
             },
             {.threads_per_rank = threads});
    }
  }
}

}  // namespace
}  // namespace moegrad::fsdp::dropout_ranks_test
