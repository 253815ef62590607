// SPDX-License-Identifier: Apache-2.0
#include "examples/trainer.h"

#include <cmath>

#include "examples/metrics.h"
#include "tests/fsdp/models.h"

namespace moegrad::examples {
namespace {

using testing::message_of;

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
    auto config = testing::sharded_toy_config();
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
  const auto text = data();
  std::vector<double> losses;
  std::vector<std::string> samples;
  for (const int world_size : {1, 2, 3}) {
    launch(world_size, [&](RankContext& context) {
      models::Qwen3Moe model(config(), 1);
      shard_model(model, DeviceMesh::flat(context.group()), {});
      const double loss = evaluate(model, text, 10, 2);
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

TEST_F(SmallRun, LossOfATrainingStepFalls) {
  const auto text = data();
  launch(2, [&](RankContext& context) {
    models::Qwen3Moe model(config(), 1);
    auto& state = shard_model(model, DeviceMesh::flat(context.group()), {});
    optim::AdamW optimizer(decay_matrices(model.named_parameters(), 1e-2, 0.1), {});
    std::vector<double> losses;
    for (std::int64_t step = 0; step < 40; ++step) {
      const std::vector<MicroBatch> batches = {text.training_batch(1, step, 0, 2, 2),
                                               text.training_batch(1, step, 1, 2, 2)};
      const auto result = train_step(model, state, batches, {}, optimizer);
      losses.push_back(result.ce);
      std::int64_t routed = 0;
      for (const auto count : result.tokens_per_expert[0]) routed += count;
      EXPECT_EQ(routed, 2 * 2 * 16 * 2);
    }
    EXPECT_LT(losses.back(), 0.6 * losses.front());
  });
}

TEST(Sample, NeedsAPrompt) {
  models::Qwen3Moe model(testing::sharded_toy_config(), 1);
  EXPECT_EQ(message_of<ValueError>([&] { sample(model, "", 1, 8, 1.0, 1); }),
            "--prompt: must not be empty");
}

}  // namespace
}  // namespace moegrad::examples
