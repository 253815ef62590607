// SPDX-License-Identifier: Apache-2.0
#include "train/memory_budget.h"

#include <gmock/gmock.h>

#include <functional>
#include <string>

#include "framework/runtime/program.h"
#include "tests/testing.h"
#include "train/data/text_data.h"
#include "train/data/windowed_data.h"
#include "train/rank_memory.h"
#include "train/training_run.h"

namespace moegrad::training::memory_budget_test {
namespace {

using namespace test;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TrainConfig config_with(std::int64_t budget) {
  TrainConfig config;
  config.model.preset = "tiny";
  config.optim.steps = 1;
  config.data.batch = 8;
  config.data.sequence_length = 128;
  config.data.validation_sequences = 1;
  config.output.sample_bytes = 0;
  config.memory.budget = budget;
  return config;
}

int run(const TrainConfig& config) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += std::to_string(i) + " sheep went to the water.\n";
  const WindowedData data(TextData(text, "sheep", config.data.sequence_length),
                          {.micro_batches = config.data.micro_batches,
                           .sequences = config.data.batch,
                           .validation_sequences = config.data.validation_sequences,
                           .seed = config.optim.seed});
  ::testing::internal::CaptureStdout();
  struct Shown {
    ~Shown() { ::testing::internal::GetCapturedStdout(); }
  } shown;
  return run_training(config, data, {});
}

TEST(MemoryBudget, RefusesLessThanWhatARankHolds) {
  const auto memory = rank_memory(config_with(0));
  const auto held = memory.parameters + memory.optimizer + memory.gradients;
  EXPECT_NO_THROW(check_memory_budget(config_with(0)));
  EXPECT_NO_THROW(check_memory_budget(config_with(held)));
  EXPECT_EQ(message_of<UsageError>([&] { check_memory_budget(config_with(held - 1)); }),
            "--memory-budget: must be at least " + std::to_string(held) +
                " bytes for the parameters (" + std::to_string(memory.parameters) +
                "), the optimizer's state (" + std::to_string(memory.optimizer) +
                ") and gradients (" + std::to_string(memory.gradients) + ") of rank 0, got " +
                std::to_string(held - 1));
  EXPECT_THROW(run(config_with(held - 1)), UsageError);
}

TEST(MemoryBudget, NamesWhatTakesMostAndWhatShrinksIt) {
  MemoryUse live;
  live[MemoryTag::kOptimizer] = 10;
  live[MemoryTag::kActivations] = 30;
  live[MemoryTag::kParameters] = 20;
  live[MemoryTag::kGradients] = 9;
  const auto text = what_shrinks(live);
  EXPECT_THAT(text, StartsWith("; to shrink activations: --recompute"));
  EXPECT_THAT(text, HasSubstr("; to shrink parameters: a larger --world-size"));
  EXPECT_THAT(text, HasSubstr("; to shrink optimizer: "));
  EXPECT_EQ(text.find("gradients"), std::string::npos);
  EXPECT_EQ(what_shrinks({}), "");
}

TEST(MemoryBudget, EndsARunThatNeedsMoreAndLetsOneThatFits) {
  const auto memory = rank_memory(config_with(0));
  const auto held = memory.parameters + memory.optimizer + memory.gradients;
  EXPECT_EQ(run(config_with(held + 100'000'000)), 0);
  const auto message = message_of<MemoryBudgetError>([&] { run(config_with(held + 4'000'000)); });
  EXPECT_THAT(message, HasSubstr("arena: budget of " + std::to_string(held + 4'000'000)));
  EXPECT_THAT(message, HasSubstr("; to shrink activations: --recompute"));
}

}  // namespace
}  // namespace moegrad::training::memory_budget_test
