// SPDX-License-Identifier: Apache-2.0

// Class E0 unless a test says otherwise: everything here is equal to the last bit.

#include <algorithm>

#include "framework/runtime/arena.h"
#include "framework/runtime/cpu_kernels.h"
#include "fsdp/fully_shard.h"
#include "ops/cross_entropy.h"
#include "tests/fsdp/models.h"

namespace moegrad::training_parity_test {
namespace {

using namespace test;
using fsdp::Accumulation;

constexpr fsdp::Accumulation kEveryAccumulation[] = {
    fsdp::Accumulation::kKeepUntilLast, fsdp::Accumulation::kReduceEach,
    fsdp::Accumulation::kScatterEach, fsdp::Accumulation::kReducePairs};

enum class Precision : std::uint8_t { kFloat32, kNarrow, kBFloat16 };

fsdp::MixedPrecisionPolicy policy_of(Precision precision) {
  if (precision == Precision::kNarrow) {
    return {.wire_dtype = Dtype::kBFloat16, .reduce_dtype = Dtype::kBFloat16};
  }
  if (precision == Precision::kBFloat16) return {.param_dtype = Dtype::kBFloat16};
  return {};
}

/// What a step over 16 micro-batches gives on one rank; eight ranks have two each.
struct Case {
  ParallelDims ranks = {};
  fsdp::Accumulation accumulation = fsdp::Accumulation::kKeepUntilLast;
  Precision precision = Precision::kFloat32;
  std::optional<ParallelDims> experts = {};

  ToyTraining training() const {
    return {.ranks = ranks,
            .experts = experts,
            .steps = 3,
            .micro_batches = 16,
            .policy = {.mixed_precision = policy_of(precision)},
            .accumulation = accumulation};
  }
  const test::History& on_one_rank() const {
    static const auto histories = [] {
      std::vector<test::History> all;
      for (const auto each : {Precision::kFloat32, Precision::kNarrow, Precision::kBFloat16}) {
        all.push_back(train_sharded(sharded_toy_config(), Case{.precision = each}.training()));
      }
      return all;
    }();
    return histories[static_cast<std::size_t>(precision)];
  }

  friend std::ostream& operator<<(std::ostream& out, const Case& c) {
    constexpr const char* kNames[] = {"KeptUntilLast", "ReducedEach", "ScatteredEach",
                                      "ReducedPairs"};
    const auto grid = [](const ParallelDims& dims) {
      return std::to_string(dims.dp_replicate) + "x" + std::to_string(dims.dp_shard);
    };
    out << "Mesh" << grid(c.ranks);
    if (c.experts) out << "Experts" << grid(*c.experts);
    constexpr const char* kPrecisions[] = {"Float32", "NarrowOnTheWire", "BFloat16"};
    return out << kNames[static_cast<int>(c.accumulation)]
               << kPrecisions[static_cast<int>(c.precision)];
  }
};

std::vector<Case> cases() {
  std::vector<Case> cases;
  for (const auto precision : {Precision::kFloat32, Precision::kNarrow, Precision::kBFloat16}) {
    for (const auto accumulation : kEveryAccumulation) {
      // Eight shards exceed the four experts: they begin inside one.
      for (const ParallelDims ranks :
           {ParallelDims{1, 1}, {1, 2}, {1, 4}, {1, 8}, {2, 1}, {2, 2}, {2, 4}, {4, 2}, {8, 1}}) {
        cases.push_back({ranks, accumulation, precision});
      }
      if (accumulation == fsdp::Accumulation::kScatterEach) continue;
      cases.push_back({{1, 4}, accumulation, precision, ParallelDims{2, 2}});
      cases.push_back({{2, 2}, accumulation, precision, ParallelDims{1, 4}});
      cases.push_back({{2, 4}, accumulation, precision, ParallelDims{4, 2}});
    }
  }
  return cases;
}

class TrainingOnAnyMesh : public ::testing::TestWithParam<Case> {};

TEST_P(TrainingOnAnyMesh, GivesTheBitsOfOneRank) {
  const auto& one = GetParam().on_one_rank();
  EXPECT_LT(one.loss.back(), one.loss.front());
  EXPECT_EQ(train_sharded(sharded_toy_config(), GetParam().training()), one);
}

INSTANTIATE_TEST_SUITE_P(FullyShard, TrainingOnAnyMesh, ::testing::ValuesIn(cases()),
                         ::testing::PrintToStringParamName());

TEST(FullyShard, RoundsWhatTravelsNarrowOnOneRankToo) {
  const Case narrow = {.precision = Precision::kNarrow}, wide;
  EXPECT_NE(narrow.on_one_rank().loss, wide.on_one_rank().loss);
  EXPECT_NE(narrow.on_one_rank().parameters, wide.on_one_rank().parameters);
}

// Class E0: whatever is gathered, for whichever kernels, kept or computed again.
TEST(FullyShard, ComputesInBFloat16WithTheSameBitsInEveryForm) {
  const auto history = [](const std::function<void(ToyTraining&)>& change,
                          nn::ExpertWeights weights = nn::ExpertWeights::kPretransposed) {
    auto config = sharded_toy_config();
    config.expert_weights = weights;
    auto training = Case{.ranks = {1, 2}, .precision = Precision::kBFloat16}.training();
    change(training);
    return train_sharded(config, training);
  };
  const auto& one = Case{.precision = Precision::kBFloat16}.on_one_rank();
  for (const auto kernels : available_cpu_kernels()) {
    EXPECT_EQ(history([&](ToyTraining& t) { t.launch.kernels = kernels; }), one) << kernels;
  }
  for (const auto layout : {Layout::kNZ, Layout::kND}) {
    EXPECT_EQ(history([&](ToyTraining& t) { t.policy.gathered_layout = layout; }), one) << layout;
    const auto travels_wide = [&](ToyTraining& t) {
      t.policy.gathered_layout = layout;
      t.policy.mixed_precision.wire_dtype = Dtype::kFloat32;
    };
    EXPECT_EQ(history(travels_wide), one) << layout;
    auto other = history([&](ToyTraining& t) { t.policy.gathered_layout = layout; },
                         nn::ExpertWeights::kHuggingFace);
    EXPECT_EQ(other.loss, one.loss) << layout;  // parameters are stored in another order
    EXPECT_EQ(other.grad_norm, one.grad_norm) << layout;
  }
  for (const bool reshard : {false, true}) {
    EXPECT_EQ(history([&](ToyTraining& t) { t.policy.reshard_after_forward = reshard; }), one);
  }
  EXPECT_EQ(history([](ToyTraining& t) { t.recompute_layers = 2; }), one);
  EXPECT_EQ(history([](ToyTraining& t) { t.policy.linear_only_shard = true; }), one);
  EXPECT_EQ(history([](ToyTraining& t) { t.launch.threads_per_rank = 2; }), one);
}

// Only here does the order show in which losses are summed: sums of a few float32 are exact.
TEST(FullyShard, SumsLossesInTheOrderOfMicroBatchesOnAnyMesh) {
  auto config = sharded_toy_config();
  config.dtype = Dtype::kFloat64;
  const auto one = train_sharded(config, Case{}.training());
  for (const auto accumulation : kEveryAccumulation) {
    for (const ParallelDims ranks : {ParallelDims{1, 2}, {1, 4}, {2, 1}, {2, 2}}) {
      const Case spread = {.ranks = ranks, .accumulation = accumulation};
      EXPECT_EQ(train_sharded(config, spread.training()), one) << spread;
    }
  }
}

// Class E2.
TEST(FullyShard, TrainsOnNumbersThatAreNoPowersOfTwoWithinTolerance) {
  auto config = sharded_toy_config();
  config.dtype = Dtype::kFloat64;
  const auto one = train_sharded(config, {.micro_batches = 6});
  for (const ParallelDims ranks : {ParallelDims{1, 2}, {2, 1}, {1, 3}, {3, 1}, {2, 3}, {3, 2}}) {
    for (const auto accumulation : kEveryAccumulation) {
      const auto spread =
          train_sharded(config, {.ranks = ranks, .micro_batches = 6, .accumulation = accumulation});
      for (std::size_t step = 0; step < one.loss.size(); ++step) {
        EXPECT_NEAR(spread.loss[step], one.loss[step], 1e-10) << to_string(ranks);
        EXPECT_NEAR(spread.grad_norm[step], one.grad_norm[step], 1e-9) << to_string(ranks);
      }
    }
  }
}

TEST(FullyShard, GivesTheSameLossesWhateverTheExpertLayout) {
  const auto losses = [](Layout layout, nn::ExpertWeights weights) {
    auto config = sharded_toy_config();
    config.expert_weights = weights;
    auto history =
        train_sharded(config, {.ranks = {.dp_shard = 2}, .policy = {.gathered_layout = layout}});
    history.parameters.clear();  // which are stored in another order
    return history;
  };
  const auto nz = losses(Layout::kNZ, nn::ExpertWeights::kPretransposed);
  EXPECT_EQ(losses(Layout::kND, nn::ExpertWeights::kPretransposed), nz);
  EXPECT_EQ(losses(Layout::kND, nn::ExpertWeights::kHuggingFace), nz);
  EXPECT_EQ(losses(Layout::kNZ, nn::ExpertWeights::kHuggingFace), nz);
}

/// On one rank with the defaults, and on four.
class TrainingWithAPolicy : public ::testing::Test {
 protected:
  static const test::History& on_one_rank() {
    static const auto one = train_sharded(sharded_toy_config(), {});
    return one;
  }
  static void expect_the_same_bits(const ToyTraining& changes) {
    for (const ParallelDims ranks : {ParallelDims{1, 4}, {2, 2}}) {
      auto training = changes;
      training.ranks = ranks;
      EXPECT_EQ(train_sharded(sharded_toy_config(), training), on_one_rank()) << to_string(ranks);
    }
  }
};

TEST_F(TrainingWithAPolicy, ThatLeavesNormsAndRoutersToTheRootChangesNoBit) {
  expect_the_same_bits({.policy = {.linear_only_shard = true}});
}

TEST_F(TrainingWithAPolicy, ThatKeepsParametersGatheredChangesNoBit) {
  for (const bool reshard : {true, false}) {
    for (const auto accumulation : kEveryAccumulation) {
      expect_the_same_bits(
          {.policy = {.reshard_after_forward = reshard}, .accumulation = accumulation});
    }
  }
}

TEST_F(TrainingWithAPolicy, ThatGathersAheadChangesNoBit) {
  for (const int prefetch : {0, 2, 5})
    expect_the_same_bits({.policy = {.forward_prefetch = prefetch}});
}

TEST_F(TrainingWithAPolicy, ThatCutsOtherDimensionsChangesNoBit) {
  const auto columns = [](const nn::ParameterSlot& slot) {
    const bool cut = slot.name.ends_with("o_proj.weight") ||
                     slot.name.ends_with("embed_tokens.weight") || slot.name.ends_with("down_proj");
    return fsdp::ShardPlacement{.dim = cut ? -1 : 0};
  };
  for (const auto accumulation : kEveryAccumulation) {
    expect_the_same_bits({.policy = {.shard_placement = columns}, .accumulation = accumulation});
  }
}

TEST_F(TrainingWithAPolicy, ThatRecomputesLayersChangesNoBit) {
  for (const std::int64_t layers : {1, 2}) {
    for (const auto accumulation : kEveryAccumulation) {
      expect_the_same_bits({.recompute_layers = layers, .accumulation = accumulation});
    }
  }
}

TEST_F(TrainingWithAPolicy, ThatNeverHasTheLogitsAsAWholeChangesNoBit) {
  for (const auto accumulation : kEveryAccumulation) {
    expect_the_same_bits({.step = {.linear_cross_entropy = true}, .accumulation = accumulation});
  }
}

TEST(FullyShard, GathersAHeadOfItsOwnGroupForItsCrossEntropy) {
  const auto config = sharded_toy_config();
  const auto batch = test::toy_batches(0, 1, config.vocab_size)[0];
  launch(2, [&](RankContext& context) {
    models::CausalLM model(config, 3);
    const auto mesh = DeviceMesh::flat(context.group());
    const auto modules = model.named_modules();
    const auto head = std::ranges::find(modules, "lm_head", &decltype(modules)::value_type::first);
    ASSERT_NE(head, modules.end());
    fsdp::fully_shard(*head->second, mesh);
    training::shard_model(model, mesh, {});
    const auto logits = model(batch.tokens, batch.documents).logits;
    const auto pieces = model(batch.tokens, batch.documents, {.targets = batch.targets});
    EXPECT_EQ(pieces.ce_sum.item(),
              ops::cross_entropy(logits, batch.targets, {.denominator = 1.0}).item());
  });
}

TEST(FullyShard, ShardsTiedEmbeddingsOnce) {
  auto config = sharded_toy_config();
  config.tie_word_embeddings = true;
  const auto one = train_sharded(config, {});
  for (const auto accumulation : kEveryAccumulation) {
    for (const ParallelDims ranks : {ParallelDims{1, 2}, {1, 4}, {2, 2}}) {
      const bool pairs = accumulation == Accumulation::kReducePairs;
      if (pairs && ranks.ranks() == 4) continue;  // of four micro-batches
      ToyTraining training = {.ranks = ranks, .accumulation = accumulation};
      EXPECT_EQ(train_sharded(config, training), one) << to_string(ranks);
      training.recompute_layers = 2;
      training.step = {.linear_cross_entropy = true};
      EXPECT_EQ(train_sharded(config, training), one) << to_string(ranks);
    }
  }
  for (const ParallelDims ranks : {ParallelDims{.dp_shard = 2, .ep = 2},
                                   {.dp_shard = 4, .ep = 2},
                                   {.dp_replicate = 2, .dp_shard = 2, .ep = 2}}) {
    const ToyTraining training = {.ranks = ranks, .accumulation = Accumulation::kReduceEach};
    EXPECT_EQ(train_sharded(config, training), one) << to_string(ranks);
  }
}

TEST(FullyShard, ConvertsToNzInTheCopyOutAlone) {
  std::int64_t transposes = -1, conversions = -1, copy_outs = -1;
  ToyTraining training = {.ranks = {.dp_shard = 2}, .steps = 3, .micro_batches = 2};
  training.inspect = [&](RankContext& context) {
    transposes = context.counters().materialized_transposes;
    conversions = context.counters().nz_conversions;
    copy_outs = context.counters().nz_copy_outs;
  };
  train_sharded(sharded_toy_config(), training);
  EXPECT_EQ(transposes, 0);
  EXPECT_EQ(conversions, 0);
  // Two weights in each of two layers, gathered in forward and again in backward, three steps.
  EXPECT_EQ(copy_outs, 2 * 2 * 2 * 3);
  // Recomputation runs within backward, on parameters that backward gathers anyway.
  training.recompute_layers = 2;
  train_sharded(sharded_toy_config(), training);
  EXPECT_EQ(copy_outs, 2 * 2 * 2 * 3);
  training.policy.gathered_layout = Layout::kND;
  train_sharded(sharded_toy_config(), training);
  EXPECT_EQ(copy_outs, 0);
}

}  // namespace
}  // namespace moegrad::training_parity_test
