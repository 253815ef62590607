// SPDX-License-Identifier: Apache-2.0
#include "train/config/train_options.h"

#include "tests/testing.h"

namespace moegrad::training::train_options_test {
namespace {

using test::message_of;

/// Exit code of the parser, -1 where the program would go on.
int parse(std::vector<std::string> arguments, TrainOptions& options) {
  arguments.insert(arguments.begin(), "train_qwen3_moe");
  std::vector<char*> pointers;
  for (auto& argument : arguments) pointers.push_back(argument.data());
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const auto code =
      parse_train_options(static_cast<int>(pointers.size()), pointers.data(), options);
  ::testing::internal::GetCapturedStdout();
  ::testing::internal::GetCapturedStderr();
  return code.value_or(-1);
}

TEST(TrainOptions, ParsesFlagsAndRefusesUnknownOnes) {
  TrainOptions options;
  EXPECT_EQ(parse({"--steps", "7", "--layout", "nd", "--linear_only_shard", "1"}, options), -1);
  EXPECT_EQ(options.steps, 7);
  EXPECT_EQ(options.layout, "nd");
  EXPECT_TRUE(options.linear_only_shard);
  EXPECT_EQ(parse({"--help"}, options), 0);
  EXPECT_EQ(parse({"--stepz", "7"}, options), 2);
  EXPECT_EQ(parse({"--layout", "zz"}, options), 2);
  EXPECT_EQ(parse({"--steps", "0"}, options), 2);
}

TEST(TrainOptions, TheSwitchSetsLayoutAndOrientationAndTheFlagsOverrideIt) {
  TrainOptions options;
  EXPECT_EQ(options.model_config().gathered_layout, Layout::kNZ);
  options.layout = "nd";
  EXPECT_EQ(options.model_config().gathered_layout, Layout::kND);
  EXPECT_EQ(options.model_config().expert_weights, nn::ExpertWeights::kPretransposed);
  options.layout.clear();
  options.expert_weights = "hf";
  EXPECT_EQ(options.model_config().gathered_layout, Layout::kNZ);
  EXPECT_EQ(options.model_config().expert_weights, nn::ExpertWeights::kHuggingFace);
  options.expert_weights.clear();
  options.grouped_matmul_nz_transpose = false;
  EXPECT_EQ(options.model_config().expert_weights, nn::ExpertWeights::kHuggingFace);
  EXPECT_EQ(options.model_config().gathered_layout, Layout::kND);
}

TEST(TrainOptions, AConstantScheduleHasTheWarmupThatIsAskedFor) {
  TrainOptions options;
  EXPECT_EQ(options.warmup_steps(), 40);
  options.schedule = "constant";
  EXPECT_EQ(options.warmup_steps(), 0);
  options.warmup = 7;
  EXPECT_EQ(options.warmup_steps(), 7);
  options.warmup = options.steps;
  EXPECT_NE(options.to_string().find("  warmup                      500\n"), std::string::npos);
  options.sequence_length = 4096;
  options.model_config();
}

TEST(TrainOptions, RefusesWhatCannotBe) {
  const auto message = [](auto change) {
    TrainOptions options;
    change(options);
    return message_of<ValueError>([&] { options.model_config(); });
  };
  EXPECT_EQ(message([](TrainOptions& o) { o.world_size = 0; }),
            "--world-size: must be at least 1, got 0");
  EXPECT_EQ(message([](TrainOptions& o) { o.threads_per_rank = 0; }),
            "--threads-per-rank: must be at least 1, got 0");
  EXPECT_EQ(message([](TrainOptions& o) {
              o.data = "x.bin";
              o.pack = true;
            }),
            "--pack: the documents of --data need --end-of-document");
  EXPECT_EQ(message([](TrainOptions& o) { o.resume = true; }), "--resume: needs --checkpoint-dir");
  EXPECT_EQ(message([](TrainOptions& o) { o.warmup = 490; }),
            "--warmup: must leave room in 500 steps, got 490");
  EXPECT_EQ(message([](TrainOptions& o) {
              o.schedule = "constant";
              o.warmup = 501;
            }),
            "--warmup: must leave room in 500 steps, got 501");
  EXPECT_EQ(message([](TrainOptions& o) { o.sequence_length = 4097; }),
            "--seq-len: the model has positions for documents of 4096 tokens "
            "(max_position_embeddings), got 4097");
  EXPECT_EQ(message([](TrainOptions& o) {
              o.pack = true;
              o.sequence_length = 513;
            }),
            "--pack: the model has positions for documents of 4096 tokens "
            "(max_position_embeddings), got packs of 4104");
  EXPECT_EQ(message([](TrainOptions& o) { o.recompute_layers = 99; }).substr(0, 40),
            "--recompute-layers: the model has 4 laye");
}

}  // namespace
}  // namespace moegrad::training::train_options_test
