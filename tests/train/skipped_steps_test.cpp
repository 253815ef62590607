// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "framework/io/checkpoint_folders.h"
#include "models/causal_lm/save_pretrained.h"
#include "tests/framework/io/files.h"
#include "tests/testing.h"
#include "train/data/windowed_data.h"
#include "train/training_run.h"

namespace moegrad::training::skipped_steps_test {
namespace {

using nlohmann::json;
using namespace test;

constexpr char kPoison = 'Q';

/// Runs of a model whose embedding of one byte is infinite: steps with that byte are not finite,
/// all others are.
class SkippedStepsTest : public ::testing::Test {
 protected:
  SkippedStepsTest() {
    models::CausalLM model(models::CausalLMConfig::preset("tiny"), /*seed=*/1);
    for (auto [name, tensor] : model.named_parameters()) {
      if (name != "model.embed_tokens.weight") continue;
      auto values = tensor.mutable_data<float>();
      const auto width = tensor.dim(1);
      std::fill_n(values.begin() + kPoison * width, width, std::numeric_limits<float>::infinity());
    }
    models::save_pretrained(model, folder_ / "poisoned");
    options_.model.hf_model = (folder_ / "poisoned").string();
    options_.optim.steps = 12;
    options_.optim.schedule = ScheduleKind::kConstant;
    options_.data.batch = 1;
    options_.data.sequence_length = 16;
    options_.data.validation_sequences = 2;
    options_.output.sample_bytes = 0;
    options_.output.metrics = (folder_ / "metrics.jsonl").string();
    options_.checkpoint.dir = (folder_ / "checkpoints").string();
  }

  WindowedData data() const {
    std::string text;
    for (int i = 0; i < 100; ++i) text += std::to_string(i) + " sheep went to the water.\n";
    for (std::size_t i = 0; i < text.size() / 2; i += 40) text[i] = kPoison;
    return {TextData(text, "sheep", options_.data.sequence_length),
            {.micro_batches = options_.data.micro_batches,
             .sequences = options_.data.batch,
             .validation_sequences = options_.data.validation_sequences,
             .seed = options_.optim.seed}};
  }

  int run(const TrainingEvents& events = {}) const {
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    const auto text = data();
    try {
      const int code = run_training(options_, text, events);
      ::testing::internal::GetCapturedStdout();
      warnings_ = ::testing::internal::GetCapturedStderr();
      return code;
    } catch (...) {
      ::testing::internal::GetCapturedStdout();
      ::testing::internal::GetCapturedStderr();
      throw;
    }
  }

  /// TrainState::skipped_steps after each step.
  std::vector<std::int64_t> expected() const {
    const auto text = data();
    std::vector<std::int64_t> counts;
    for (std::int64_t step = 0; step < options_.optim.steps; ++step) {
      bool poisoned = false;
      for (std::int64_t i = 0; i < text.micro_batches(); ++i) {
        const auto tokens = test::integers(text.micro_batch(step, i).tokens);
        poisoned = poisoned || std::ranges::count(tokens, std::int64_t{kPoison}) > 0;
      }
      counts.push_back((counts.empty() ? 0 : counts.back()) + (poisoned ? 1 : 0));
    }
    return counts;
  }

  /// The same, as the metrics file says it. Checks that only skipped steps lack a loss.
  std::vector<std::int64_t> recorded() const {
    std::ifstream file(options_.output.metrics);
    std::vector<std::int64_t> counts;
    for (std::string text; std::getline(file, text);) {
      const auto line = json::parse(text);
      if (!line.contains("skipped_steps")) continue;
      const std::int64_t count = line["skipped_steps"];
      EXPECT_EQ(line["loss"].is_null(), count > (counts.empty() ? 0 : counts.back())) << text;
      counts.push_back(count);
    }
    return counts;
  }

  TemporaryFolder folder_;
  TrainConfig options_;
  mutable std::string warnings_;
};

TEST_F(SkippedStepsTest, DoNotSpoilLaterStepsAndAreCounted) {
  const auto counts = expected();
  ASSERT_GE(counts.back(), 2);
  ASSERT_LT(counts.back(), options_.optim.steps - 1);
  options_.optim.max_skipped_steps = counts.back();
  EXPECT_EQ(run(), 0);
  EXPECT_EQ(recorded(), counts);
  const auto first = std::ranges::find(counts, 1) - counts.begin();
  EXPECT_NE(warnings_.find("step " + std::to_string(first) +
                           ": loss and gradient norm must be finite, got "),
            std::string::npos)
      << warnings_;
}

TEST_F(SkippedStepsTest, EndTheRunAboveTheLimit) {
  const auto counts = expected();
  options_.optim.max_skipped_steps = counts.back() - 1;
  const auto last = std::ranges::find(counts, counts.back()) - counts.begin();
  const auto message = message_of<Error>([&] { run(); });
  EXPECT_TRUE(message.starts_with("step " + std::to_string(last) +
                                  ": loss and gradient norm must be finite, got "))
      << message;
  EXPECT_EQ(std::ssize(recorded()), last);
}

TEST_F(SkippedStepsTest, EndARunThatGoesOnFromTheStepBefore) {
  const auto counts = expected();
  options_.optim.max_skipped_steps = counts.back() - 1;
  const auto last = std::ranges::find(counts, counts.back()) - counts.begin();
  message_of<Error>([&] { run(); });
  const auto found = list_checkpoints(options_.checkpoint.dir);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].step, last);
  options_.checkpoint.resume = true;
  options_.optim.max_skipped_steps = counts.back();
  EXPECT_EQ(run(), 0);
  EXPECT_EQ(recorded(), counts);
}

TEST_F(SkippedStepsTest, SaveNothingWhereNoStepWasDone) {
  const auto counts = expected();
  ASSERT_EQ(counts.front(), 0);
  options_.optim.lr = 1e30;  // the second step is not finite, whatever its bytes
  options_.optim.warmup = 0;
  message_of<Error>([&] { run(); });
  const auto found = list_checkpoints(options_.checkpoint.dir);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].step, 1);
  options_.checkpoint.resume = true;
  message_of<Error>([&] { run(); });
  EXPECT_EQ(list_checkpoints(options_.checkpoint.dir).size(), 1U);
}

TEST_F(SkippedStepsTest, AreCountedOnByAResumedRun) {
  const auto counts = expected();
  options_.optim.max_skipped_steps = counts.back();
  const auto first = std::ranges::find(counts, 1) - counts.begin();
  std::int64_t steps = 0;
  EXPECT_EQ(run({.stop_requested = [&] { return ++steps > first + 1; }}), -1);
  EXPECT_LT(std::ssize(recorded()), options_.optim.steps);
  options_.checkpoint.resume = true;
  EXPECT_EQ(run(), 0);
  EXPECT_EQ(recorded(), counts);
}

TEST_F(SkippedStepsTest, EndAResumedRunWhoseLimitIsLower) {
  const auto counts = expected();
  options_.optim.max_skipped_steps = counts.back();
  const auto first = std::ranges::find(counts, 1) - counts.begin();
  std::int64_t steps = 0;
  EXPECT_EQ(run({.stop_requested = [&] { return ++steps > first + 1; }}), -1);
  options_.checkpoint.resume = true;
  options_.optim.max_skipped_steps = 0;
  const auto second = std::ranges::find(counts, 2) - counts.begin();
  const auto message = message_of<Error>([&] { run(); });
  EXPECT_TRUE(message.starts_with("step " + std::to_string(second) +
                                  ": loss and gradient norm must be finite, got "))
      << message;
}

}  // namespace
}  // namespace moegrad::training::skipped_steps_test
