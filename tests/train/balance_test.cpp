// SPDX-License-Identifier: Apache-2.0
// What keeps the loads of experts alike, in a training step.
#include "train/balance.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "framework/runtime/grad_mode.h"
#include "ops/aux_loss.h"
#include "optim/adamw.h"
#include "optim/sgd.h"
#include "tests/fsdp/models.h"
#include "train/evaluate.h"
#include "train/train_step.h"

namespace moegrad::training::balance_test {
namespace {

using models::CausalLM;
using models::CausalLMConfig;
using models::ModelType;
using namespace test;

CausalLMConfig config_of(ModelType type) {
  auto config = test::toy_config_of(type);
  config.dtype = Dtype::kFloat32;
  config.initializer_range = 0.1;
  return config;
}

/// What a model's step of four micro-batches computes on each number of ranks.
struct Step {
  StepResult result;
  TensorList biases;
};

Step run_step(const CausalLMConfig& config, int ranks, const StepOptions& options,
              const std::vector<MicroBatch>& batches, std::int64_t recomputed = 0,
              const StepForward& forward = run_model) {
  Step step;
  launch(ranks, [&](RankContext& context) {
    CausalLM model(config, 3);
    recompute_layers(model, recomputed);
    auto& state = shard_model(model, DeviceMesh::flat(context.group()), {});
    optim::AdamW optimizer(decay_matrices(model.named_parameters(), 1e-2, 0.1), {});
    fsdp::StepPlan plan(state, std::ssize(batches));
    auto result = train_step(model, plan, plan.own(batches), options, optimizer, forward);
    if (context.rank() != 0) return;
    step.result = std::move(result);
    for (const auto& [name, bias] : model.named_buffers()) step.biases.push_back(bias.detach());
  });
  return step;
}

std::vector<MicroBatch> batches_of(const CausalLMConfig& config, std::int64_t count = 4) {
  return toy_batches(0, count, config.vocab_size);
}

/// One micro-batch with the tokens of all.
MicroBatch together(const std::vector<MicroBatch>& batches) {
  std::vector<std::int64_t> tokens, targets, lengths;
  for (const auto& batch : batches) {
    for (const auto token : batch.tokens.data<std::int64_t>()) tokens.push_back(token);
    for (const auto target : batch.targets.data<std::int64_t>()) targets.push_back(target);
    for (const auto length : {7, 9}) lengths.push_back(length);
  }
  return {.tokens = Tensor::from(tokens, {std::ssize(tokens)}),
          .targets = Tensor::from(targets, {std::ssize(targets)}),
          .documents = Documents::of_lengths(lengths)};
}

TEST(Balance, CorrectionBiasesMoveOnceAStepByTheLoadsOfAllRanks) {
  const auto config = config_of(ModelType::kGlm4Moe);
  const StepOptions options = {.balance = {.bias_update_rate = 0.25}};
  const auto alone = run_step(config, 1, options, batches_of(config));
  ASSERT_EQ(std::ssize(alone.biases), config.num_moe_layers());
  int moved = 0;
  for (std::size_t layer = 0; layer < alone.biases.size(); ++layer) {
    const auto& counts = alone.result.tokens_per_expert[layer];
    const auto total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    EXPECT_EQ(total, 4 * 16 * config.num_experts_per_tok);
    const auto bias = alone.biases[layer].data<float>();
    for (std::size_t e = 0; e < counts.size(); ++e) {
      const auto above = counts[e] * config.num_experts - total;
      EXPECT_EQ(bias[e], above < 0 ? 0.25F : above > 0 ? -0.25F : 0.0F);
      moved += bias[e] != 0 ? 1 : 0;
    }
  }
  EXPECT_GT(moved, 8);
  for (const int ranks : {2, 3, 4}) {  // 3 ranks run twice without tokens
    const auto step = run_step(config, ranks, options, batches_of(config));
    EXPECT_EQ(step.result.tokens_per_expert, alone.result.tokens_per_expert);
    for (std::size_t layer = 0; layer < alone.biases.size(); ++layer) {
      EXPECT_TRUE(bitwise_equal(step.biases[layer], alone.biases[layer])) << ranks;
    }
  }
}

TEST(Balance, CorrectionBiasesMoveByThePapersRateUnlessAnotherIsGiven) {
  const auto config = config_of(ModelType::kGlm4Moe);
  const auto largest = [&](const Balance& balance) {
    float most = 0;
    for (const auto& bias : run_step(config, 1, {.balance = balance}, batches_of(config)).biases) {
      for (const auto value : bias.data<float>()) most = std::max(most, std::abs(value));
    }
    return most;
  };
  EXPECT_EQ(largest({}), 1e-3F);
  EXPECT_EQ(largest({.bias_update_rate = 0}), 0.0F);
}

TEST(Balance, AStepThatIsLeftOutMovesNoBias) {
  const auto config = config_of(ModelType::kGlm4Moe);
  const StepForward forward = [](CausalLM& model, const auto&, const MicroBatch& batch,
                                 const CausalLM::ForwardOptions& options) {
    auto output = model(batch.tokens, batch.documents, options);
    output.logits = output.logits * HUGE_VAL;
    return output;
  };
  const auto step = run_step(config, 2, {}, batches_of(config), 0, forward);
  EXPECT_FALSE(step.result.is_finite());
  for (const auto& bias : step.biases) {
    for (const auto value : bias.data<float>()) EXPECT_EQ(value, 0.0F);
  }
}

// The loss of ranks that run micro-batches at the same time is that of one large micro-batch.
TEST(Balance, OverRanksIsTheLossOfTheirMicroBatchesTogether) {
  for (const auto type : {ModelType::kQwen3Moe, ModelType::kGlm4Moe}) {
    for (const auto layers : {BalancedLayers::kPooled, BalancedLayers::kEach}) {
      auto config = config_of(type);
      config.dtype = Dtype::kFloat64;
      const auto batches = batches_of(config);
      const auto options = [&](BalancedTokens tokens) {
        return StepOptions{.balance = {.aux_loss_coef = 0.5, .layers = layers, .tokens = tokens}};
      };
      const auto large =
          run_step(config, 1, options(BalancedTokens::kMicroBatch), {together(batches)});
      const auto ranks = run_step(config, 4, options(BalancedTokens::kRanks), batches);
      const auto own = run_step(config, 4, options(BalancedTokens::kMicroBatch), batches);
      EXPECT_NEAR(ranks.result.loss, large.result.loss, 1e-12);
      EXPECT_NEAR(ranks.result.grad_norm, large.result.grad_norm, 1e-11);
      EXPECT_GT(std::abs(own.result.loss - large.result.loss), 1e-4);
      EXPECT_GT(std::abs(own.result.grad_norm - large.result.grad_norm), 1e-5);
      // Idle ranks count as nothing.
      const std::vector<MicroBatch> three(batches.begin(), batches.begin() + 3);
      const auto whole =
          run_step(config, 1, options(BalancedTokens::kMicroBatch), {together(three)});
      const auto idle = run_step(config, 4, options(BalancedTokens::kRanks), three);
      EXPECT_NEAR(idle.result.loss, whole.result.loss, 1e-12);
      EXPECT_NEAR(idle.result.grad_norm, whole.result.grad_norm, 1e-11);
    }
  }
}

TEST(Balance, CoefficientsOfTheStepOutrankTheModels) {
  auto config = config_of(ModelType::kQwen3Moe);
  config.router_aux_loss_coef = 0;
  const auto loss = [&](const CausalLMConfig& model, const Balance& balance) {
    return run_step(model, 1, {.balance = balance}, batches_of(model)).result.loss;
  };
  auto balanced = config;
  balanced.router_aux_loss_coef = 0.3;
  EXPECT_EQ(loss(config, {.aux_loss_coef = 0.3}), loss(balanced, {}));
  EXPECT_EQ(loss(balanced, {.aux_loss_coef = 0}), loss(config, {}));
  EXPECT_GT(loss(config, {.z_loss_coef = 0.1}), loss(config, {}) + 0.01);
}

// Random numbers of the router's input depend on seed, step, token and layer alone.
TEST(Balance, JitterHasTheSameBitsOnEveryNumberOfRanksAndWhenItIsRecomputed) {
  auto config = config_of(ModelType::kMixtral);
  const auto batches = batches_of(config);
  const auto figures = [&](int ranks, const StepOptions& options, std::int64_t recomputed = 0) {
    const auto result = run_step(config, ranks, options, batches, recomputed).result;
    return std::pair(result.loss, result.grad_norm);
  };
  const auto plain = figures(1, {});
  config.router_jitter_noise = 0.1;
  const auto jittered = figures(1, {.seed = 1, .step = 2});
  EXPECT_NE(jittered, plain);
  for (const int ranks : {2, 4}) EXPECT_EQ(figures(ranks, {.seed = 1, .step = 2}), jittered);
  EXPECT_EQ(figures(2, {.seed = 1, .step = 2}, 2), jittered);
  EXPECT_NE(figures(1, {.seed = 1, .step = 3}), jittered);
  EXPECT_NE(figures(1, {.seed = 2, .step = 2}), jittered);
  // The same tokens in two micro-batches have other random numbers.
  const auto loss = [&](const std::vector<MicroBatch>& of) {
    return run_step(config, 1, {.seed = 1, .step = 2}, of).result.loss;
  };
  EXPECT_GT(std::abs(loss({batches[0], batches[0]}) - loss({batches[0]})), 1e-6);
}

TEST(Balance, JitterNeedsTheNumberOfTheStep) {
  auto config = config_of(ModelType::kMixtral);
  config.router_jitter_noise = 0.1;
  EXPECT_EQ(test::message_of<ValueError>([&] { run_step(config, 1, {}, batches_of(config)); }),
            "train_step: options.step must be given for a model with router_jitter_noise, so that "
            "each step has random numbers of its own");
}

TEST(Balance, TheEntropyOfASigmoidRouterIsOfItsScoresDividedByTheirSum) {
  auto config = config_of(ModelType::kGlm4Moe);
  config.initializer_range = 0.5;
  const auto batch = batches_of(config, 1)[0];
  double entropy = 0, of_softmax = 0;
  {
    CausalLM model(config, 3);
    const NoGradGuard no_grad;
    const auto output = model(batch.tokens, batch.documents);
    for (const auto& logits : output.router_logits) {
      of_softmax += ops::router_entropy(logits);
      const auto values = logits.data<float>();
      for (std::int64_t t = 0; t < logits.dim(0); ++t) {
        std::vector<double> scores;
        for (std::int64_t e = 0; e < config.num_experts; ++e) {
          const double x = values[static_cast<std::size_t>(t * config.num_experts + e)];
          scores.push_back(1 / (1 + std::exp(-x)));
        }
        const double sum = std::accumulate(scores.begin(), scores.end(), 0.0);
        for (const double s : scores) entropy -= s / sum * std::log(s / sum);
      }
    }
  }
  const double rows = 16.0 * static_cast<double>(config.num_moe_layers());
  const auto step = run_step(config, 1, {}, {batch});
  EXPECT_NEAR(step.result.router_entropy, entropy / rows, 1e-6);
  EXPECT_GT(std::abs(of_softmax - entropy) / rows, 0.02);
}

TEST(Balance, CountsThatDoNotFitMoveNoBias) {
  const auto config = test::toy_config_of(ModelType::kGlm4Moe);
  CausalLM model(config, 3);
  const std::vector<std::int64_t> good = {1, 2, 3, 4, 5, 6};
  const auto message = [&](std::vector<std::vector<std::int64_t>> counts) {
    return test::message_of<ValueError>([&] { model.balance(counts, 0.1); });
  };
  EXPECT_EQ(message({good}), "CausalLM: balance needs counts of 2 mixture layers, got 1");
  EXPECT_EQ(message({good, {1, 2}}),
            "CausalLM: balance needs 6 counts that are not negative for mixture layer 1, got 2");
  EXPECT_EQ(message({good, {1, 2, 3, -4, 5, 6}}),
            "CausalLM: balance needs 6 counts that are not negative for mixture layer 1, got 6");
  for (const auto& [name, bias] : model.named_buffers()) {
    EXPECT_TRUE(bitwise_equal(bias, Tensor::zeros({6}))) << name;
  }
  CausalLM plain(test::toy_config(), 3);
  EXPECT_EQ(test::message_of<Error>([&] {
              plain.balance({{1, 1, 1, 1, 1}, {1, 1, 1, 1, 1}}, 1);
            }),
            "CausalLM: balance needs routers with a correction bias, got a model without");
}

TEST(Balance, InitWeightsPutsCorrectionBiasesBack) {
  const auto config = test::toy_config_of(ModelType::kGlm4Moe);
  CausalLM model(config, 3);
  const std::vector<std::int64_t> counts = {1, 2, 3, 4, 5, 6};
  model.balance({counts, counts}, 0.1);
  model.init_weights(3);
  const CausalLM fresh(config, 3);
  const auto again = model.state_dict(), expected = fresh.state_dict();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(bitwise_equal(again[i].tensor, expected[i].tensor)) << expected[i].name;
  }
}

TEST(Balance, JitterIsForTrainingAlone) {
  auto config = config_of(ModelType::kMixtral);
  CausalLM plain(config, 3);
  config.router_jitter_noise = 0.1;
  CausalLM model(config, 3);
  const auto batch = batches_of(config, 1)[0];
  EXPECT_THROW(model(batch.tokens, batch.documents), Error);  // without a DropoutIdsGuard
  model.eval();
  const NoGradGuard no_grad;
  EXPECT_TRUE(bitwise_equal(model(batch.tokens, batch.documents).logits,
                            plain(batch.tokens, batch.documents).logits));
}

}  // namespace
}  // namespace moegrad::training::balance_test
