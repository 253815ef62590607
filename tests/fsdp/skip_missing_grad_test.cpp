// SPDX-License-Identifier: Apache-2.0

// Experts without tokens under fully_shard, optimizers made with skip_missing_grad.

#include <algorithm>

#include "nn/experts.h"
#include "optim/adamw.h"
#include "tests/fsdp/models.h"

namespace moegrad::skip_missing_grad_test {
namespace {

using namespace test;

/// More experts than the 16 tokens of a micro-batch reach.
models::CausalLMConfig sparse_config() {
  auto config = sharded_toy_config();
  config.num_experts = 12;
  config.num_experts_per_tok = 1;
  return config;
}

struct Run {
  std::vector<double> loss, grad_norm;
  std::vector<std::vector<std::int64_t>> steps;  // of the optimizer, per parameter
  friend bool operator==(const Run&, const Run&) = default;
};

Run train(const models::CausalLMConfig& config, int world_size, bool skip) {
  Run run;
  launch(world_size, [&](RankContext& context) {
    models::CausalLM model(config, 3);
    auto& state = training::shard_model(model, DeviceMesh::flat(context.group()), {});
    optim::AdamW::Config options;
    if (skip) options.skip_missing_grad = nn::expert_blocks(model);
    optim::AdamW optimizer(training::decay_matrices(model.named_parameters(), 1e-2, 0.1), options);
    fsdp::StepPlan plan(state, 4);
    std::vector<double> loss, grad_norm;
    for (std::int64_t step = 0; step < 6; ++step) {
      const auto result = training::train_step(
          model, plan, plan.own(test::toy_batches(step, 4, config.vocab_size)), {}, optimizer);
      loss.push_back(result.loss);
      grad_norm.push_back(result.grad_norm);
    }
    if (context.rank() + 1 != world_size) return;  // any rank would do
    run.loss = loss;
    run.grad_norm = grad_norm;
    for (const auto& own : optimizer.states()) run.steps.push_back(test::integers(own.steps));
  });
  return run;
}

TEST(SkipMissingGrad, TrainsBitwiseTheSameOnOneTwoAndFourRanks) {
  const auto one = train(sparse_config(), 1, true);
  std::int64_t skipped = 0;
  for (const auto& steps : one.steps) {
    skipped += std::ranges::count_if(steps, [](std::int64_t count) { return count < 6; });
  }
  EXPECT_GT(skipped, 0);
  EXPECT_NE(one.loss, train(sparse_config(), 1, false).loss);
  for (const int world_size : {2, 4}) EXPECT_EQ(train(sparse_config(), world_size, true), one);
}

TEST(SkipMissingGrad, TrainsBitwiseTheSameInEitherOrientationOfTheWeights) {
  auto config = sparse_config();
  const auto pretransposed = train(config, 2, true);
  config.expert_weights = nn::ExpertWeights::kHuggingFace;
  EXPECT_EQ(train(config, 2, true), pretransposed);
}

}  // namespace
}  // namespace moegrad::skip_missing_grad_test
