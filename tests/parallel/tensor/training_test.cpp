// SPDX-License-Identifier: Apache-2.0
// Training under tensor parallelism: losses, norms and parameters, to the bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "framework/distributed/launch.h"
#include "framework/distributed/parallel_dims.h"
#include "framework/runtime/rank_context.h"
#include "fsdp/state_dict.h"
#include "fsdp/step_plan.h"
#include "models/causal_lm/model.h"
#include "optim/adamw.h"
#include "tests/ops/indices.h"
#include "tests/testing.h"
#include "train/expert_counts.h"
#include "train/train_step.h"

namespace moegrad::parallel::training_test {
namespace {

using namespace test;
using models::CausalLMConfig;
using training::MicroBatch;

constexpr std::int64_t kMicroBatches = 4, kTokens = 512;
constexpr std::int64_t kSteps = kSanitized ? 1 : 3;

struct Layout {
  ParallelDims dims = {};
  bool sequence_parallel = false;
  bool linear_cross_entropy = false;
  std::int64_t token_parts = 1;
  bool recomputed = false;
};

std::string to_string(const Layout& layout) {
  return moegrad::to_string(layout.dims) + (layout.sequence_parallel ? ", sequence parallel" : "") +
         (layout.linear_cross_entropy ? ", linear cross-entropy" : "") +
         (layout.recomputed ? ", recomputed" : "");
}

struct Result {
  std::vector<double> losses, norms, entropies;
  std::vector<training::ExpertCounts> counts;
  NamedTensors parameters;
};

MicroBatch batch_of(std::int64_t step, std::int64_t index, std::int64_t vocabulary) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i <= kTokens; ++i) {
    ids.push_back((i * i * (7 + index) + 11 * i + 5 * step) % vocabulary);
  }
  const std::span<const std::int64_t> all(ids);
  const auto documents = Documents::of_lengths({kTokens / 4, kTokens - kTokens / 4});
  return {.tokens = Tensor::from(all.first(kTokens), {kTokens}),
          .targets = Tensor::from(all.last(kTokens), {kTokens}),
          .documents = documents};
}

Result train(const CausalLMConfig& config, const Layout& layout, std::int64_t steps,
             std::optional<Dtype> compute = std::nullopt) {
  Result result;
  LaunchOptions launch_options;
  launch_options.jitter = {.maximum = std::chrono::microseconds(100), .seed = 1};
  launch(
      layout.dims.ranks(),
      [&](RankContext& context) {
        const auto meshes = make_meshes(context.group(), layout.dims);
        models::CausalLM model(config, 5);
        fsdp::Policy policy;
        policy.mixed_precision.param_dtype = compute;
        if (layout.recomputed) training::recompute_layers(model, config.num_hidden_layers);
        auto& state = training::shard_model(
            model, meshes, policy,
            {.sequence_parallel = layout.sequence_parallel, .token_parts = layout.token_parts});
        optim::AdamW optimizer(model.named_parameters(), {.lr = 1e-3});
        fsdp::StepPlan plan(state, kMicroBatches, fsdp::accumulation_on(layout.dims));
        const training::StepOptions options{.max_grad_norm = 0.1,
                                            .balance = {.z_loss_coef = 1e-3},
                                            .linear_cross_entropy = layout.linear_cross_entropy,
                                            .tensor_ranks = meshes.dense.group("tp"),
                                            .token_parts = layout.token_parts / layout.dims.tp};
        for (std::int64_t step = 0; step < steps; ++step) {
          std::vector<MicroBatch> own;
          for (const auto index : plan.indices()) {
            own.push_back(batch_of(step, index, config.vocab_size));
          }
          const auto done = training::train_step(model, plan, own, options, optimizer);
          if (context.rank() != 0) continue;
          result.losses.push_back(done.loss);
          result.norms.push_back(done.grad_norm);
          result.entropies.push_back(done.router_entropy);
          result.counts.push_back(done.tokens_per_expert);
        }
        auto parameters = fsdp::full_state_dict(model);
        if (context.rank() == 0) result.parameters = std::move(parameters);
      },
      launch_options);
  return result;
}

void expect_same(const Result& got, const Result& expected) {
  EXPECT_EQ(got.losses, expected.losses);
  EXPECT_EQ(got.norms, expected.norms);
  EXPECT_EQ(got.entropies, expected.entropies);
  EXPECT_EQ(got.counts, expected.counts);
  ASSERT_EQ(got.parameters.size(), expected.parameters.size());
  for (std::size_t i = 0; i < got.parameters.size(); ++i) {
    EXPECT_EQ(got.parameters[i].name, expected.parameters[i].name);
    EXPECT_TRUE(bitwise_equal(got.parameters[i].tensor, expected.parameters[i].tensor))
        << got.parameters[i].name;
  }
}

CausalLMConfig config_of(const char* preset) {
  auto config = CausalLMConfig::preset(preset);
  config.hidden_size = config.vocab_size = config.intermediate_size = 512;
  config.num_hidden_layers = 1;
  config.head_dim = 64;
  config.num_attention_heads = config.num_key_value_heads = 8;
  return config;
}

TEST(TensorParallelTraining, OfADenseModelHasTheBitsOfOneRank) {
  const auto config = config_of("tiny-dense");
  const auto expected = train(config, {}, kSteps);
  for (const Layout& layout : {Layout{.dims = {.tp = 2}},
                               {.dims = {.dp_shard = 2, .tp = 2}, .sequence_parallel = true},
                               {.dims = {.dp_replicate = 2, .tp = 2}, .linear_cross_entropy = true},
                               {.dims = {.tp = 4}, .sequence_parallel = true, .recomputed = true},
                               {.dims = {.dp_shard = 4, .tp = 2}, .linear_cross_entropy = true},
                               {.dims = {.dp_shard = 8}},
                               {.dims = {.dp_shard = 2, .tp = 4}, .sequence_parallel = true}}) {
    if (layout.dims.ranks() / layout.dims.tp > kMicroBatches) continue;
    if (kSanitized && (layout.dims.ranks() != 4 || layout.dims.dp_shard != 2)) continue;
    SCOPED_TRACE(to_string(layout));
    expect_same(train(config, layout, kSteps), expected);
  }
}

// The one rank sums over as many parts of the tokens.
TEST(TensorParallelTraining, OfAMixtureHasTheBitsOfOneRankWithTheSameTokenParts) {
  auto config = config_of("tiny-qwen2-moe");
  config.moe_intermediate_size = 64;
  config.shared_expert_intermediate_size = 512;
  for (const std::int64_t parts : {2, 4}) {
    if (kSanitized && parts == 4) continue;
    const auto expected = train(config, {.token_parts = parts}, kSteps);
    for (Layout layout : {Layout{.dims = {.tp = 2}},
                          {.dims = {.tp = 2, .ep = 2}, .sequence_parallel = true},
                          {.dims = {.dp_shard = 2, .tp = 2}, .sequence_parallel = true},
                          {.dims = {.dp_shard = 2, .tp = 2, .ep = 2}},
                          {.dims = {.dp_replicate = 2, .dp_shard = 2, .tp = 2, .ep = 2},
                          .sequence_parallel = true,
                          .linear_cross_entropy = true,
                          .recomputed = true},
                          {.dims = {.tp = 4, .ep = 4}, .sequence_parallel = true},
                          {.dims = {.dp_shard = 4}}}) {
      layout.token_parts = parts;
      if (kSanitized && (layout.dims.ranks() != 4 || layout.dims.ep == 1)) continue;
      if (parts % layout.dims.tp != 0 || (layout.dims.ep > 1 && layout.dims.ep != parts)) continue;
      SCOPED_TRACE(to_string(layout) + ", token parts " + std::to_string(parts));
      expect_same(train(config, layout, kSteps), expected);
    }
  }
}

}  // namespace
}  // namespace moegrad::parallel::training_test
