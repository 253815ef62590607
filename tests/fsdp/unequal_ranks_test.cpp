// SPDX-License-Identifier: Apache-2.0

// Note [Shards are the truth]: ranks that begin with, or write, other values than the others.

#include <gmock/gmock.h>

#include "nn/init.h"
#include "tests/fsdp/two_blocks.h"

namespace moegrad::fsdp::unequal_ranks_test {
namespace {

using namespace two_block_net;
using namespace test;
using ::testing::HasSubstr;

TEST(UnequalRanks, RanksThatBeginWithOtherWeightsAreAnErrorThatNamesParameterAndRanks) {
  launch(4, [](RankContext& rank) {
    auto sequence = two_blocks();
    RealNet net(sequence);
    if (rank.rank() % 2 == 1) {
      Tensor weight = *net.blocks[1]->parameter_slots()[0].tensor;
      weight.mutable_data<double>()[15] += 1e-9;
    }
    shard(net, rank);
    EXPECT_EQ(message_of<Error>([&] { loss_of(net); }),
              "fully_shard: every rank must pass the same values of 'block1.linear.weight', got "
              "others on rank 1, 3 than on rank 0 of group '" +
                  rank.group()->name() + "'");
  });
}

TEST(UnequalRanks, ReplicasThatBeginWithOtherWeightsAreAnError) {
  launch(4, [](RankContext& rank) {
    RealNet net(two_blocks());
    if (rank.rank() >= 2) halve(net);
    const DeviceMesh mesh(rank.group(), {{"replicate", 2}, {"shard", 2}});
    fully_shard(net, mesh);
    EXPECT_THAT(message_of<Error>([&] { loss_of(net); }),
                HasSubstr("fully_shard: every rank must pass the same values of"));
  });
}

// What the ranks began with no longer matters.
TEST(UnequalRanks, OtherWeightsAreFineOnceTheShardsHaveBeenFilled) {
  launch(3, [](RankContext& rank) {
    RealNet net(two_blocks());
    if (rank.rank() == 1) halve(net);
    shard(net, rank);
    nn::init_weights(net, 3, 0.1);
    loss_of(net).backward();
  });
}

// One rank alone writes to its shards: an error on all, no hang and no mixture.
TEST(UnequalRanks, ARankThatWritesAloneIsAnError) {
  std::vector<std::string> messages(2);
  EXPECT_THROW(launch(2,
                      [&](RankContext& rank) {
                        RealNet net(two_blocks());
                        auto& root = shard(net, rank);
                        root.set_reshard_after_forward(false);
                        loss_of(net);
                        if (rank.rank() == 0) halve(net);
                        try {
                          loss_of(net);
                          // Here rank 1 alone would still compute with what it has.
                          for (int i = 0; i < 3; ++i) {
                            halve(net);
                            loss_of(net);
                          }
                        } catch (const CollectiveError& error) {
                          messages[static_cast<std::size_t>(rank.rank())] = error.what();
                          throw;
                        }
                      },
                      {.on_failure = [](const std::string&) {}}),
               CollectiveError);
  for (const auto& message : messages) EXPECT_THAT(message, HasSubstr("again, request"));
}

}  // namespace
}  // namespace moegrad::fsdp::unequal_ranks_test
