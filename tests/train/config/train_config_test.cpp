// SPDX-License-Identifier: Apache-2.0
#include "train/config/train_config.h"

#include <optional>

#include "tests/testing.h"
#include "train/config/train_options.h"

namespace moegrad::training::train_config_test {
namespace {

using test::message_of;

TEST(TrainConfig, TheSwitchSetsLayoutAndOrientationUnlessTheyAreGiven) {
  TrainConfig config;
  EXPECT_EQ(config.policy().gathered_layout, Layout::kNZ);
  config.model.layout = Layout::kND;
  EXPECT_EQ(config.policy().gathered_layout, Layout::kND);
  EXPECT_EQ(config.model_config().expert_weights, nn::ExpertWeights::kPretransposed);
  config.model.layout.reset();
  config.model.expert_weights = nn::ExpertWeights::kHuggingFace;
  EXPECT_EQ(config.policy().gathered_layout, Layout::kNZ);
  EXPECT_EQ(config.model_config().expert_weights, nn::ExpertWeights::kHuggingFace);
  config.model.expert_weights.reset();
  config.model.grouped_matmul_nz_transpose = false;
  EXPECT_EQ(config.model_config().expert_weights, nn::ExpertWeights::kHuggingFace);
  EXPECT_EQ(config.policy().gathered_layout, Layout::kND);
}

TEST(TrainConfig, AConstantScheduleHasTheWarmupThatIsAskedFor) {
  TrainConfig config;
  EXPECT_EQ(warmup_steps(config.optim), 40);
  config.optim.schedule = ScheduleKind::kConstant;
  EXPECT_EQ(warmup_steps(config.optim), 0);
  config.optim.warmup = 7;
  EXPECT_EQ(warmup_steps(config.optim), 7);
  EXPECT_DOUBLE_EQ(schedule_of(config.optim)(0), 0.0);
  EXPECT_DOUBLE_EQ(schedule_of(config.optim)(499), 4e-3);
  config.optim.warmup = config.optim.steps;
  EXPECT_NE(describe(config).find("  warmup                      500\n"), std::string::npos);
  config.data.sequence_length = 4096;
  config.validate();
}

TEST(TrainConfig, SaysHowLayersAreSharded) {
  TrainConfig config;
  EXPECT_FALSE(config.policy().reshard_after_forward.has_value());
  config.memory.reshard_after_forward = false;
  config.parallel.prefetch = 3;
  config.parallel.linear_only_shard = true;
  config.parallel.wire_dtype = Dtype::kBFloat16;
  config.parallel.reduce_dtype = Dtype::kFloat32;
  const auto policy = config.policy();
  EXPECT_EQ(policy.reshard_after_forward, false);
  EXPECT_EQ(policy.forward_prefetch, 3);
  EXPECT_TRUE(policy.linear_only_shard);
  EXPECT_EQ(policy.mixed_precision.wire_dtype, Dtype::kBFloat16);
  EXPECT_FALSE(policy.mixed_precision.reduce_dtype.has_value());
}

TEST(TrainConfig, InBFloat16KeepsParametersAndSumsInFloat32AndSendsWhatItComputesIn) {
  constexpr auto kNarrow = Dtype::kBFloat16, kWide = Dtype::kFloat32;
  for (const std::optional<Dtype> wire : {std::optional<Dtype>(), {kNarrow}, {kWide}}) {
    TrainConfig config;
    config.model.dtype = kNarrow;
    config.parallel.wire_dtype = wire;
    EXPECT_EQ(config.model_config().dtype, kWide);
    const auto mixed = config.policy().mixed_precision;
    EXPECT_EQ(mixed.param_dtype, kNarrow);
    EXPECT_EQ(mixed.wire_dtype.value_or(kNarrow), wire.value_or(kNarrow));
    EXPECT_FALSE(mixed.reduce_dtype.has_value());
    const auto whole = config.resolved();
    EXPECT_EQ(whole.parallel.wire_dtype, wire.value_or(kNarrow));
    EXPECT_EQ(whole.parallel.reduce_dtype, kWide);
  }
}

TEST(TrainConfig, TakesATextForAVocabularyOfBytesAlone) {
  const auto message = [](const std::string& preset, auto change) {
    TrainConfig config;
    config.model.preset = preset;
    change(config);
    return message_of<ValueError>([&] { config.validate(); });
  };
  const auto as_it_is = [](TrainConfig&) {};
  EXPECT_EQ(message("qwen3-0.6b", as_it_is),
            "--preset: a text is read by bytes, which are the ids of a vocab_size of 256, got "
            "151936; name a file of the model's own ids with --data");
  EXPECT_EQ(message("qwen3-0.6b", [](TrainConfig& config) { config.data.text = "a.txt"; }),
            message("qwen3-0.6b", as_it_is));
  EXPECT_EQ(message("qwen3-0.6b", [](TrainConfig& config) { config.data.tokens = "ids.bin"; }),
            "--data-dtype: must be given for a vocab_size above 65536, most of which uint16 does "
            "not hold, got none for 151936");
  const auto accept = [](auto change) {
    TrainConfig config;
    config.model.preset = "qwen3-0.6b";
    change(config);
    config.validate();
  };
  accept([](TrainConfig& config) { config.output.dry_run = true; });
  for (const auto dtype : {TokenDtype::kUInt16, TokenDtype::kUInt32}) {
    accept([&](TrainConfig& config) {
      config.data.tokens = "ids.bin";
      config.data.token_dtype = dtype;
    });
  }
  for (const auto preset : models::CausalLMConfig::preset_names()) {
    const auto config = models::CausalLMConfig::preset(std::string(preset));
    EXPECT_EQ(config.vocab_size != 256,
              preset.starts_with("qwen3-"))
        << preset;  // the sizes of released models
  }
}

TEST(TrainConfig, RefusesWhatCannotBe) {
  const auto message = [](auto change) {
    TrainConfig config;
    change(config);
    return message_of<ValueError>([&] { config.validate(); });
  };
  EXPECT_EQ(message([](TrainConfig& c) { c.parallel.world_size = 0; }),
            "--world-size: must be at least 1, got 0");
  EXPECT_EQ(message([](TrainConfig& c) { c.parallel.threads_per_rank = 0; }),
            "--threads-per-rank: must be at least 1, got 0");
  EXPECT_EQ(message([](TrainConfig& c) {
              c.parallel.world_size = 3;
              c.parallel.replicas = 2;
            }),
            "--replicas: must divide the ranks (--world-size), 3, got 2");
  EXPECT_EQ(message([](TrainConfig& c) {
              c.parallel.world_size = 4;
              c.parallel.replicas = 2;
              c.parallel.expert_parallel = 4;
            }),
            "--expert-parallel: must divide the ranks of a replica, 2, got 4");
  EXPECT_EQ(message([](TrainConfig& c) { c.parallel.context_parallel = 2; }),
            "--context-parallel: must be 1, because a sequence cannot be divided over ranks yet, "
            "got 2");
  const auto tensor = [&](const std::function<void(TrainConfig&)>& change) {
    return message([&](TrainConfig& c) {
      c.parallel.tensor_parallel = 2;
      c.parallel.token_parts = 2;
      change(c);
    });
  };
  EXPECT_EQ(message([](TrainConfig& c) { c.parallel.sequence_parallel = true; }),
            "--sequence-parallel: needs --tensor-parallel");
  EXPECT_EQ(tensor([](TrainConfig& c) { c.parallel.tensor_parallel = 3; }),
            "--tensor-parallel: must divide the ranks of a replica, 2, got 3");
  EXPECT_EQ(tensor([](TrainConfig& c) { c.parallel.token_parts = 1; }),
            "--token-parts: must be a multiple of --tensor-parallel, 2, for a model with experts, "
            "got 1");
  EXPECT_EQ(tensor([](TrainConfig& c) {
              c.parallel.world_size = 4;
              c.parallel.expert_parallel = 4;
            }),
            "--expert-parallel: must be 1 or what --tensor-parallel is, 2, got 4");
  EXPECT_EQ(tensor([](TrainConfig& c) {
              c.parallel.expert_parallel = 2;
              c.parallel.token_parts = 4;
            }),
            "--token-parts: must be what --expert-parallel is, 2, where tokens travel to experts, "
            "got 4");
  EXPECT_EQ(tensor([](TrainConfig& c) {
              c.parallel.world_size = c.parallel.tensor_parallel = 3;
              c.parallel.token_parts = 3;
              c.data.sequence_length = 126;
            }),
            "--tensor-parallel: must divide num_attention_heads, 4, got 3");
  EXPECT_EQ(tensor([](TrainConfig& c) {
              c.data.sequence_length = 127;
              c.parallel.token_parts = 1;
              c.model.preset = "tiny-dense";
              c.parallel.sequence_parallel = true;
              c.data.batch = 1;
            }),
            "--sequence-parallel: the ranks of --tensor-parallel must divide the tokens of a "
            "micro-batch, 127, got 2");
  EXPECT_EQ(
      message([](TrainConfig& c) {
        c.parallel.expert_parallel = c.parallel.world_size = 2;
        c.parallel.token_parts = 2;
      }),
      "--token-parts: must be 1 with --expert-parallel, unless --tensor-parallel is as large, "
      "got 2");
  EXPECT_EQ(tensor([](TrainConfig& c) { c.data.pack = true; }),
            "--pack: micro-batches have any number of tokens, which --token-parts cannot divide");
  EXPECT_EQ(tensor([](TrainConfig& c) { c.model.preset = "tiny-dense"; }),
            "--token-parts: must be 1 for a model without experts, got 2");
  EXPECT_EQ(tensor([](TrainConfig& c) { c.parallel.token_parts = 6; }),
            "--token-parts: must divide --seq-len, 128, got 6");
  EXPECT_EQ(
      message([](TrainConfig& c) { c.parallel.pipeline_parallel = 2; }),
      "--pipeline-parallel: must be 1, because the order of layers cannot be divided over ranks "
      "yet, got 2");
  EXPECT_EQ(message([](TrainConfig& c) {
              c.model.preset = "tiny-dense";
              c.parallel.expert_parallel = 2;
            }),
            "--expert-parallel: must be 1 for a model without experts, got 2");
  EXPECT_EQ(message([](TrainConfig& c) {
              c.parallel.world_size = 4;
              c.parallel.expert_parallel = 3;
            }),
            "--expert-parallel: must divide the ranks (--world-size), 4, got 3");
  EXPECT_EQ(message([](TrainConfig& c) {
              c.parallel.world_size = 5;
              c.parallel.expert_parallel = 5;
            }),
            "--expert-parallel: must divide the experts of a layer, 16, got 5");
  EXPECT_EQ(message([](TrainConfig& c) {
              c.data.tokens = "x.bin";
              c.data.pack = true;
            }),
            "--pack: the documents of --data need --end-of-document");
  EXPECT_EQ(message([](TrainConfig& c) { c.checkpoint.resume = true; }),
            "--resume: needs --checkpoint-dir");
  EXPECT_EQ(message([](TrainConfig& c) { c.optim.warmup = 490; }),
            "--warmup: must leave room in 500 steps, got 490");
  EXPECT_EQ(message([](TrainConfig& c) {
              c.optim.schedule = ScheduleKind::kConstant;
              c.optim.warmup = 501;
            }),
            "--warmup: must leave room in 500 steps, got 501");
  EXPECT_EQ(message([](TrainConfig& c) { c.data.sequence_length = 4097; }),
            "--seq-len: the model has positions for documents of 4096 tokens "
            "(max_position_embeddings), got 4097");
  EXPECT_EQ(message([](TrainConfig& c) {
              c.data.pack = true;
              c.data.sequence_length = 513;
            }),
            "--pack: the model has positions for documents of 4096 tokens "
            "(max_position_embeddings), got packs of 4104");
  EXPECT_EQ(message([](TrainConfig& c) { c.memory.plan.recompute_layers = 99; }),
            "--recompute-layers: the model has 4 layers, got 99");
  EXPECT_EQ(message([](TrainConfig& c) { c.parallel.wire_dtype = Dtype::kFloat64; }),
            "--wire-dtype: must be bf16 or what --dtype is, fp32, got fp64");
  EXPECT_EQ(message([](TrainConfig& c) {
              c.model.dtype = Dtype::kFloat64;
              c.parallel.reduce_dtype = Dtype::kFloat32;
            }),
            "--reduce-dtype: must be bf16 or what --dtype is, fp64, got fp32");
  EXPECT_EQ(message([](TrainConfig& c) { c.output.export_dtype = Dtype::kFloat64; }),
            "--export-dtype: must be bf16 or what --dtype is, fp32, got fp64");
  EXPECT_EQ(message([](TrainConfig& c) { c.output.prompt.clear(); }),
            "--prompt: must not be empty");
  EXPECT_EQ(message([](TrainConfig& c) { c.output.profile = "t.json"; }),
            "--profile: needs --profile-steps");
  EXPECT_EQ(message([](TrainConfig& c) {
              c.output.profile_steps = {{0, 501}};
            }),
            "--profile-steps: must end within 500 steps, got 501");
  EXPECT_EQ(message([](TrainConfig& c) {
              c.parallel.world_size = 65536;
              c.parallel.threads_per_rank = 2;
            }),
            "compute threads (--world-size x --threads-per-rank): must be at most 65536, got 65536 "
            "x 2");
}

TEST(TrainConfigParallel, HasAllAxes) {
  TrainConfig config;
  config.parallel.world_size = 16;
  config.parallel.replicas = 2;
  config.parallel.expert_parallel = 4;
  EXPECT_EQ(config.parallel_dims(), (ParallelDims{.dp_replicate = 2, .dp_shard = 8, .ep = 4}));
  config.parallel.context_parallel = config.parallel.tensor_parallel = 2;
  config.parallel.pipeline_parallel = 2;
  EXPECT_EQ(config.parallel_dims(),
            (ParallelDims{.dp_replicate = 2, .dp_shard = 1, .cp = 2, .tp = 2, .ep = 4, .pp = 2}));
}

}  // namespace
}  // namespace moegrad::training::train_config_test
