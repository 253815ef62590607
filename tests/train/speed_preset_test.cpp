// SPDX-License-Identifier: Apache-2.0
#include "train/speed_preset.h"

#include "framework/runtime/error.h"
#include "tests/testing.h"

namespace moegrad::training::speed_preset_test {
namespace {

using test::message_of;

TEST(SpeedPreset, OtherSizesLeaveTheArithmeticPerTokenAlone) {
  const auto main = speed_preset("main");
  const auto same = resized(main, {});
  EXPECT_EQ(same.config, main.config);
  EXPECT_EQ(same.sequences, 4);
  EXPECT_EQ(same.length, 512);

  const auto more = resized(main, {.sequences = 1, .length = 4096, .experts = 64});
  EXPECT_EQ(more.sequences, 1);
  EXPECT_EQ(more.length, 4096);
  EXPECT_EQ(more.config.num_experts, 64);
  const auto router = [](const SpeedPreset& preset) {
    return preset.config.num_hidden_layers * preset.config.num_experts * preset.config.hidden_size;
  };
  EXPECT_EQ(models::active_parameter_count(more.config) - router(more),
            models::active_parameter_count(main.config) - router(main));
}

TEST(SpeedPreset, RefusesSizesThatMakeNoStep) {
  const auto refusal = [](const SpeedSizes& sizes) {
    return message_of<ValueError>([&] { resized(speed_preset("main"), sizes); });
  };
  EXPECT_EQ(refusal({.sequences = 0}), "speed preset: sequences must be at least 1, got 0");
  EXPECT_EQ(refusal({.length = -1}), "speed preset: length must be at least 1, got -1");
  EXPECT_EQ(refusal({.experts = 0}), "speed preset: experts must be at least 1, got 0");
  EXPECT_EQ(refusal({.experts = 3}),
            "qwen3_moe config: num_experts_per_tok must be in [1, 3] (num_experts), got 4");
}

}  // namespace
}  // namespace moegrad::training::speed_preset_test
