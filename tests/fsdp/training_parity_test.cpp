// SPDX-License-Identifier: Apache-2.0

// Class E0: everything here is equal to the last bit.

#include "framework/tensor/arena.h"
#include "tests/fsdp/models.h"

namespace moegrad {
namespace {

using testing::sharded_toy_config;
using testing::train_sharded;

TEST(FullyShard, TrainsBitwiseTheSameOnOneTwoFourAndEightRanks) {
  const auto one = train_sharded(sharded_toy_config(), 1, 5, 8);
  EXPECT_LT(one.loss.back(), one.loss.front());
  // Eight ranks exceed the four experts: shards begin inside an expert.
  for (const int world_size : {2, 4, 8}) {
    EXPECT_EQ(train_sharded(sharded_toy_config(), world_size, 5, 8), one) << world_size << " ranks";
  }
}

TEST(FullyShard, TrainsOnAWorldSizeThatDividesNothingWithinTolerance) {
  auto config = sharded_toy_config();
  config.dtype = Dtype::kFloat64;
  const auto one = train_sharded(config, 1, 5, 6);
  const auto three = train_sharded(config, 3, 5, 6);
  for (std::size_t step = 0; step < one.loss.size(); ++step) {
    EXPECT_NEAR(three.loss[step], one.loss[step], 1e-10);
    EXPECT_NEAR(three.grad_norm[step], one.grad_norm[step], 1e-9);
  }
}

TEST(FullyShard, GivesTheSameLossesWhateverTheExpertLayout) {
  const auto nz = train_sharded(sharded_toy_config(), 2, 5, 4);
  auto config = sharded_toy_config();
  config.gathered_layout = Layout::kND;
  EXPECT_EQ(train_sharded(config, 2, 5, 4), nz);
  config.expert_weights = nn::ExpertWeights::kHuggingFace;
  for (const auto layout : {Layout::kND, Layout::kNZ}) {
    config.gathered_layout = layout;
    const auto hf = train_sharded(config, 2, 5, 4);
    EXPECT_EQ(hf.loss, nz.loss) << layout;
    EXPECT_EQ(hf.grad_norm, nz.grad_norm) << layout;
  }
}

TEST(FullyShard, GivesTheSameResultsWithLinearOnlyShard) {
  const auto all = train_sharded(sharded_toy_config(), 4, 5, 4);
  EXPECT_EQ(train_sharded(sharded_toy_config(), 4, 5, 4, {.linear_only_shard = true}), all);
}

TEST(FullyShard, GivesTheSameResultsWhicheverParametersStayGathered) {
  const auto base = train_sharded(sharded_toy_config(), 2, 4, 4);
  for (const bool reshard : {true, false}) {
    EXPECT_EQ(train_sharded(sharded_toy_config(), 2, 4, 4, {.reshard_after_forward = reshard}),
              base);
  }
  for (const int prefetch : {0, 2, 5}) {
    EXPECT_EQ(train_sharded(sharded_toy_config(), 2, 4, 4, {.forward_prefetch = prefetch}), base);
  }
}

TEST(FullyShard, GivesTheSameResultsWhenLayersAreRecomputed) {
  const auto kept = train_sharded(sharded_toy_config(), 2, 4, 4);
  EXPECT_EQ(train_sharded(sharded_toy_config(), 2, 4, 4, {}, {.recompute_layers = 2}), kept);
  EXPECT_EQ(train_sharded(sharded_toy_config(), 2, 4, 4, {}, {.recompute_layers = 1}), kept);
}

TEST(FullyShard, ShardsTiedEmbeddingsOnce) {
  auto config = sharded_toy_config();
  config.tie_word_embeddings = true;
  EXPECT_EQ(train_sharded(config, 4, 4, 4), train_sharded(config, 1, 4, 4));
}

TEST(FullyShard, RoundsWhatTravelsNarrowAtEveryWorldSize) {
  const fsdp::Policy narrow = {
      .mixed_precision = {.param_dtype = Dtype::kBFloat16, .reduce_dtype = Dtype::kBFloat16}};
  const auto one = train_sharded(sharded_toy_config(), 1, 5, 4, narrow);
  EXPECT_NE(one.loss, train_sharded(sharded_toy_config(), 1, 5, 4).loss);
  for (const int world_size : {2, 4}) {
    EXPECT_EQ(train_sharded(sharded_toy_config(), world_size, 5, 4, narrow), one);
  }
}

TEST(FullyShard, ConvertsToNzInTheCopyOutAlone) {
  std::int64_t transposes = -1, conversions = -1, copy_outs = -1;
  const auto read = [&](RankContext& context) {
    transposes = context.counters().materialized_transposes;
    conversions = context.counters().nz_conversions;
    copy_outs = context.counters().nz_copy_outs;
  };
  train_sharded(sharded_toy_config(), 2, 3, 2, {}, {}, read);
  EXPECT_EQ(transposes, 0);
  EXPECT_EQ(conversions, 0);
  // Two weights in each of two layers, gathered in forward and again in backward, three steps.
  EXPECT_EQ(copy_outs, 2 * 2 * 2 * 3);
  // Recomputation runs within backward, on parameters that backward gathers anyway.
  train_sharded(sharded_toy_config(), 2, 3, 2, {}, {.recompute_layers = 2}, read);
  EXPECT_EQ(copy_outs, 2 * 2 * 2 * 3);
}

}  // namespace
}  // namespace moegrad
