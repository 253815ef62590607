// SPDX-License-Identifier: Apache-2.0
#include "train/train_step.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "framework/autograd/grad_mode.h"
#include "framework/runtime/random.h"
#include "ops/cross_entropy.h"
#include "optim/adamw.h"
#include "tests/fsdp/models.h"
#include "train/data/packed_data.h"
#include "train/data/windowed_data.h"
#include "train/evaluate.h"
#include "train/logs/metrics.h"
#include "train/sample.h"

namespace moegrad::training::train_step_test {
namespace {

using test::message_of;

TEST(KnownWords, CountsWholeWordsOfLetters) {
  const std::string corpus = "In the beginning God created the heaven and the earth.";
  EXPECT_EQ(known_words("the heaven, and... earth7God", corpus), 1.0);
  EXPECT_EQ(known_words("the heav and xyz", corpus), 0.5);
  EXPECT_EQ(known_words("123 .,", corpus), 0.0);
}

TEST(ExpertLoad, IsTheBusiestOverTheMean) {
  const StepResult result{.tokens_per_expert = {{2, 2, 2, 2}, {8, 0, 0, 0}, {0, 0, 0, 0}}};
  EXPECT_EQ(expert_load(result), (std::vector<double>{1.0, 4.0, 0.0}));
}

class SmallRun : public ::testing::Test {
 protected:
  static models::Qwen3MoeConfig config() {
    auto config = test::sharded_toy_config();
    config.vocab_size = 256;
    return config;
  }
  static TextData data() {
    std::string text;
    while (text.size() < 4000) text += "the quick brown fox jumps over the lazy dog; ";
    return TextData(text, "fox", 16);
  }
};

TEST_F(SmallRun, ValidationAndSampleAreTheSameOnEveryWorldSize) {
  const WindowedData text(data(), {.sequences = 2, .validation_sequences = 10});
  std::vector<double> losses;
  std::vector<std::string> samples;
  for (const int world_size : {1, 2, 3}) {
    launch(world_size, [&](RankContext& context) {
      models::Qwen3Moe model(config(), 1);
      shard_model(model, DeviceMesh::flat(context.group()), {});
      const double loss = evaluate(model, text);
      const auto continuation = sample(model, "the q", 12, 16, 0.8, 5);
      if (context.rank() != 0) return;
      losses.push_back(loss);
      samples.push_back(continuation);
    });
  }
  EXPECT_EQ(losses[1], losses[0]);
  EXPECT_EQ(losses[2], losses[0]);
  EXPECT_NEAR(losses[0], std::log(256.0), 1.0);
  EXPECT_EQ(samples[0].size(), 12U);
  EXPECT_EQ(samples[1], samples[0]);
  EXPECT_EQ(samples[2], samples[0]);
}

TEST_F(SmallRun, ValidationSumsItsSequencesInTheirOrderOnEveryWorldSize) {
  const Random random(3, "validation text");
  std::string text;
  while (text.size() < 20000) {
    text += static_cast<char>('a' + static_cast<int>(26 * random.uniform(text.size())));
  }
  constexpr std::int64_t kSequences = 50;
  const WindowedData data(TextData(text, "letters", 16),
                          {.sequences = 1, .validation_sequences = kSequences});
  auto wide = config();  // sums of a few float32 values are exact in float64, in any order
  wide.dtype = Dtype::kFloat64;
  std::vector<double> sums;
  double targets = 0;
  launch(1, [&](RankContext& context) {
    const NoGradGuard no_grad;
    models::Qwen3Moe model(wide, 1);
    shard_model(model, DeviceMesh::flat(context.group()), {});
    for (std::int64_t i = 0; i < data.validation_batches(); ++i) {
      const auto batch = data.validation_batch(i);
      const auto output = model(batch.tokens, batch.documents);
      sums.push_back(ops::cross_entropy(output.logits, batch.targets, {.denominator = 1.0}).item());
      targets += static_cast<double>(ops::count_targets(batch.targets));
    }
  });
  ASSERT_EQ(std::ssize(sums), kSequences);
  double sum = 0;
  for (const auto term : sums) sum += term;
  int others = 0;  // world sizes whose sums of sums have other bits: without any, nothing is shown
  for (const int world_size : {1, 2, 3, 4, 5}) {
    double loss = 0;
    launch(world_size, [&](RankContext& context) {
      models::Qwen3Moe model(wide, 1);
      shard_model(model, DeviceMesh::flat(context.group()), {});
      const double own = evaluate(model, data);
      if (context.rank() == 0) loss = own;
    });
    EXPECT_EQ(loss, sum / targets) << world_size;
    const auto each = (sums.size() + static_cast<std::size_t>(world_size) - 1) /
                      static_cast<std::size_t>(world_size);
    double of_ranks = 0;
    for (std::size_t begin = 0; begin < sums.size(); begin += each) {
      double part = 0;
      for (auto i = begin; i < std::min(sums.size(), begin + each); ++i) part += sums[i];
      of_ranks += part;
    }
    others += of_ranks / targets != sum / targets ? 1 : 0;
  }
  EXPECT_GT(others, 0);
}

TEST_F(SmallRun, ValidationIsTheMeanOverTheTargetsOfPackedDocuments) {
  std::string text;
  DocumentOffsets documents = {0};
  for (int d = 0; d < 60; ++d) {
    text += std::string(static_cast<std::size_t>(3 + d % 11), static_cast<char>('a' + d % 26));
    documents.push_back(std::ssize(text));
  }
  const PackedData data(TokenSource::text(text, "letters"), documents,
                        {.budget = 12, .validation_batches = 3});
  ASSERT_EQ(data.validation_batches(), 3);
  launch(2, [&](RankContext& context) {
    models::Qwen3Moe model(config(), 1);
    shard_model(model, DeviceMesh::flat(context.group()), {});
    double sum = 0;
    std::int64_t targets = 0;
    for (std::int64_t i = 0; i < 3; ++i) {
      const NoGradGuard no_grad;
      const auto batch = data.validation_batch(i);
      const auto output = model(batch.tokens, batch.documents);
      sum += ops::cross_entropy(output.logits, batch.targets, {.denominator = 1.0}).item();
      targets += ops::count_targets(batch.targets);
      EXPECT_LT(ops::count_targets(batch.targets), batch.tokens.numel());
    }
    EXPECT_EQ(evaluate(model, data), sum / static_cast<double>(targets));
  });
}

TEST_F(SmallRun, LossOfATrainingStepFalls) {
  const auto text = data();
  launch(2, [&](RankContext& context) {
    models::Qwen3Moe model(config(), 1);
    auto& state = shard_model(model, DeviceMesh::flat(context.group()), {});
    optim::AdamW optimizer(decay_matrices(model.named_parameters(), 1e-2, 0.1), {});
    const StepPlan plan(state, 2);
    std::vector<double> losses;
    for (std::int64_t step = 0; step < 40; ++step) {
      const std::vector<MicroBatch> batches = {text.training_batch(1, step, 0, 2, 2),
                                               text.training_batch(1, step, 1, 2, 2)};
      const auto result = train_step(model, plan, plan.own(batches), {}, optimizer);
      losses.push_back(result.ce);
      std::int64_t routed = 0;
      for (const auto count : result.tokens_per_expert[0]) routed += count;
      EXPECT_EQ(routed, 2 * 2 * 16 * 2);
    }
    EXPECT_LT(losses.back(), 0.6 * losses.front());
  });
}

TEST_F(SmallRun, RanksThatDoNotDivideTheMicroBatchesComputeTheSameStep) {
  struct Step {
    double loss = 0, grad_norm = 0;
    std::vector<std::vector<std::int64_t>> tokens_per_expert;
  };
  const auto text = data();
  const auto second_step = [&](int replicas, int shards, std::int64_t micro_batches,
                               Accumulation accumulation) {
    Step second;
    launch(replicas * shards, [&](RankContext& context) {
      auto wide = config();
      wide.dtype = Dtype::kFloat64;
      models::Qwen3Moe model(wide, 1);
      const DeviceMesh mesh(context.group(), {{"replicate", replicas}, {"shard", shards}});
      auto& state = shard_model(model, mesh, {});
      optim::AdamW optimizer(decay_matrices(model.named_parameters(), 1e-2, 0.1), {});
      const StepPlan plan(state, micro_batches, accumulation);
      StepResult result;
      for (std::int64_t step = 0; step < 2; ++step) {
        std::vector<MicroBatch> batches;
        for (std::int64_t i = 0; i < micro_batches; ++i) {
          batches.push_back(text.training_batch(1, step, i, micro_batches, 1));
        }
        result = train_step(model, plan, plan.own(batches), {}, optimizer);
      }
      if (context.rank() == 0) second = {result.loss, result.grad_norm, result.tokens_per_expert};
    });
    return second;
  };
  for (const std::int64_t micro_batches : {1, 4, 5}) {
    const auto expected = second_step(1, 1, micro_batches, Accumulation::kKeepUntilLast);
    for (const auto accumulation :
         {Accumulation::kKeepUntilLast, Accumulation::kReduceEach, Accumulation::kScatterEach}) {
      for (const auto& [replicas, shards] : {std::pair{1, 3}, std::pair{2, 2}, std::pair{3, 2}}) {
        const auto found = second_step(replicas, shards, micro_batches, accumulation);
        EXPECT_NEAR(found.loss, expected.loss, 1e-12 * expected.loss);
        EXPECT_NEAR(found.grad_norm, expected.grad_norm, 1e-11 * expected.grad_norm);
        EXPECT_EQ(found.tokens_per_expert, expected.tokens_per_expert);
      }
    }
  }
}

TEST(Sample, NeedsAPrompt) {
  models::Qwen3Moe model(test::sharded_toy_config(), 1);
  EXPECT_EQ(message_of<ValueError>([&] { sample(model, "", 1, 8, 1.0, 1); }),
            "--prompt: must not be empty");
}

}  // namespace
}  // namespace moegrad::training::train_step_test
