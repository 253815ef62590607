// SPDX-License-Identifier: Apache-2.0
#include "train/run_identity.h"

#include <functional>

#include "framework/distributed/launch.h"
#include "tests/testing.h"
#include "train/data/windowed_data.h"

namespace moegrad::training::run_identity_test {
namespace {

using test::message_of;

const std::string kText(1'000, 'a');

// Three ranks, of which the last has what `change` makes of the common.
void compare(const std::function<void(TrainConfig&, std::string&)>& change) {
  launch(3, [&](RankContext& rank) {
    TrainConfig config;
    std::string text = kText;
    if (rank.rank() == 2) change(config, text);
    const WindowedData data(TextData(text, "letters", 16), {});
    check_same_run(rank.group(), record_run(config, data));
  });
}

std::string message(const std::function<void(TrainConfig&, std::string&)>& change) {
  return message_of<ValueError>([&] { compare(change); });
}

TEST(RunIdentity, MustBeTheSameOnAllRanks) {
  EXPECT_NO_THROW(compare([](TrainConfig&, std::string&) {}));
  EXPECT_EQ(message([](TrainConfig& config, std::string&) { config.optim.lr = 1; }),
            "training: all ranks must have the same lr, rank 0 has 0.004, rank 2 has 1");
  // The model's configuration has many lines; the message has the first that differs.
  EXPECT_EQ(message([](TrainConfig& config, std::string&) {
              config.model.grouped_matmul_nz_transpose = false;
            }),
            "training: all ranks must have the same config, rank 0 has \"expert_weights\": "
            "\"pretransposed\", rank 2 has \"expert_weights\": \"hf\"");
}

TEST(RunIdentity, ComparesWhatFilesHoldAndThenTheirNames) {
  const auto said = message([](TrainConfig&, std::string& text) { text.back() = 'b'; });
  EXPECT_TRUE(
      said.starts_with("training: all ranks must have the same data, rank 0 has 1000 bytes "
                       "with CRC-32C 2669277034, rank 2 has 1000 bytes with CRC-32C "))
      << said;
  EXPECT_EQ(message([](TrainConfig& config, std::string&) { config.data.text = "elsewhere"; }),
            "training: all ranks must have the same text, rank 0 has , rank 2 has elsewhere");
}

TEST(SameFirstSteps, AreThoseOfAConstantRateAndOfOneThatDoesNotDecayYet) {
  TrainConfig::Optim config;
  config.steps = 20;
  config.warmup = 2;
  const auto same = [&](const char* steps, std::int64_t step) {
    return same_first_steps(config, steps, step);
  };
  EXPECT_FALSE(same("10", 1));  // a cosine knows its end from the beginning
  config.schedule = ScheduleKind::kConstant;
  EXPECT_TRUE(same("10", 10));
  EXPECT_TRUE(same("40", 20));  // fewer steps than were planned
  EXPECT_FALSE(same("40", 21));
  config.schedule = ScheduleKind::kWarmupStableDecay;
  EXPECT_TRUE(same("10", 8));  // then it decays for two steps
  EXPECT_FALSE(same("10", 10));
  EXPECT_TRUE(same("100", 16));  // where this run begins to decay
  EXPECT_FALSE(same("100", 18));
}

}  // namespace
}  // namespace moegrad::training::run_identity_test
