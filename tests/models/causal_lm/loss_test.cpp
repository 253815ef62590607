// SPDX-License-Identifier: Apache-2.0
#include "models/causal_lm/loss.h"

#include <cmath>
#include <utility>
#include <vector>

#include "framework/tensor/fill.h"
#include "ops/aux_loss.h"
#include "ops/elementwise.h"
#include "ops/views.h"
#include "tests/models/causal_lm/toy_models.h"
#include "tests/testing.h"

namespace moegrad::models::causal_lm_loss_test {
namespace {

using namespace test;

TEST(CausalLMLoss, PartsOfAStepAddUpToTheWhole) {
  auto config = toy_config();
  config.router_aux_loss_coef = 0.0;  // the balance is taken per micro-batch
  CausalLM model(config, 5);
  const auto batch = toy_batch(config.vocab_size, {5, 8});
  const auto loss = [&](std::int64_t start, std::int64_t length,
                        const std::vector<std::int64_t>& lengths) {
    const auto output =
        model(clone(ops::narrow(batch.tokens, 0, start, length)), Documents::of_lengths(lengths));
    return causal_lm_loss(output, clone(ops::narrow(batch.targets, 0, start, length)), 10, 0.0)
        .objective.item();
  };
  EXPECT_NEAR(loss(0, 5, {5}) + loss(5, 8, {8}), loss(0, 13, {5, 8}), 1e-14);
}

TEST(CausalLMLoss, WeighsTheAuxiliaryLossByTheShareOfTargets) {
  const auto config = toy_config();
  CausalLM model(config, 5);
  const auto batch = toy_batch(config.vocab_size);
  const auto output = model(batch.tokens, batch.documents);
  const auto loss = causal_lm_loss(output, batch.targets, 40, 0.5);  // 10 valid targets of 13
  EXPECT_NEAR(loss.objective.item(),
              loss.ce_sum.item() / 40.0 + 0.5 * loss.aux.item() * 10.0 / 40.0, 1e-14);
  EXPECT_GT(loss.aux.item(), 1.0);
  EXPECT_EQ(message_of<ValueError>([&] { causal_lm_loss(output, batch.targets, 0, 0.5); }),
            "causal_lm_loss: global_targets must be >= 1, got 0");
}

// As the documentation of ops::z_loss says to use it.
TEST(CausalLMLoss, TakesAZLossOfTheRoutersBesides) {
  auto config = toy_config();
  config.router_aux_loss_coef = 0.0;
  const auto batch = toy_batch(config.vocab_size, {5, 8});
  const auto step = [&](const std::vector<std::pair<std::int64_t, std::int64_t>>& parts,
                        double coefficient) {
    CausalLM model(config, 5);
    double total = 0;
    for (const auto& [start, n] : parts) {
      const auto output = model(clone(ops::narrow(batch.tokens, 0, start, n)),
                                n == 13 ? Documents::of_lengths({5, 8}) : Documents::one(n));
      auto share = causal_lm_loss(output, clone(ops::narrow(batch.targets, 0, start, n)), 10, 0.0);
      const double share_of_tokens = static_cast<double>(n) / 13.0;
      for (const auto& logits : output.router_logits) {
        share.objective = share.objective + coefficient * share_of_tokens * ops::z_loss(logits);
      }
      share.objective.backward();
      total += share.objective.item();
    }
    NamedTensors grads;
    for (const auto& [name, parameter] : model.named_parameters()) {
      grads.push_back({name, parameter.grad()});
    }
    return std::pair(total, grads);
  };
  const auto [whole, whole_grads] = step({{0, 13}}, 1e-3);
  const auto [parts, parts_grads] = step({{0, 5}, {5, 8}}, 1e-3);
  const auto [without, without_grads] = step({{0, 13}}, 0.0);
  EXPECT_NEAR(whole, parts, 1e-12);
  EXPECT_GT(whole, without);
  int routers = 0;
  for (std::size_t i = 0; i < whole_grads.size(); ++i) {
    const auto& [name, grad] = whole_grads[i];
    EXPECT_TRUE(test::all_close(grad, parts_grads[i].tensor, 1e-10, 1e-12)) << name;
    if (!name.ends_with("mlp.gate.weight")) continue;
    ++routers;
    EXPECT_FALSE(test::bitwise_equal(grad, without_grads[i].tensor)) << name;
  }
  EXPECT_EQ(routers, 2);
}

// Against the definition, with scores that sum to one.
double balance_by_hand(const CausalLM::Output& output, bool per_layer) {
  const auto layers = output.router_logits.size();
  const auto tokens = output.router_logits[0].dim(0), experts = output.router_logits[0].dim(1);
  const bool sigmoid = output.router_scores == nn::RouterScores::kSigmoid;
  std::vector<std::vector<double>> f(layers), p = f;  // per layer and expert
  for (std::size_t l = 0; l < layers; ++l) {
    f[l].resize(static_cast<std::size_t>(experts));
    p[l] = f[l];
    for (const auto e : output.expert_indices[l].data<std::int64_t>()) {
      f[l][static_cast<std::size_t>(e)] += 1.0 / static_cast<double>(tokens);
    }
    const auto logits = output.router_logits[l].data<double>();
    for (std::int64_t t = 0; t < tokens; ++t) {
      std::vector<double> scores;
      double total = 0;
      for (std::int64_t e = 0; e < experts; ++e) {
        const double x = logits[static_cast<std::size_t>(t * experts + e)];
        scores.push_back(sigmoid ? 1 / (1 + std::exp(-x)) : std::exp(x));
        total += scores.back();
      }
      for (std::size_t e = 0; e < scores.size(); ++e) {
        p[l][e] += scores[e] / total / static_cast<double>(tokens);
      }
    }
  }
  double sum = 0;
  const auto n = static_cast<double>(layers);
  for (std::size_t e = 0; e < static_cast<std::size_t>(experts); ++e) {
    double f_all = 0, p_all = 0;
    for (std::size_t l = 0; l < layers; ++l) {
      if (per_layer) sum += f[l][e] * p[l][e] / n;
      f_all += f[l][e] / n;
      p_all += p[l][e] / n;
    }
    if (!per_layer) sum += f_all * p_all;
  }
  return static_cast<double>(experts) * sum;
}

TEST(CausalLMLoss, BalancesLayersTogetherOrEachBySoftmaxOrSigmoidScores) {
  for (const auto type : {ModelType::kQwen3Moe, ModelType::kGlm4Moe}) {
    const auto config = test::toy_config_of(type);
    CausalLM model(config, 5);
    const auto batch = toy_batch(config.vocab_size);
    const auto output = model(batch.tokens, batch.documents);
    const auto aux = [&](bool per_layer) {
      return causal_lm_loss(output, batch.targets, 12, 0.1, {.per_layer = per_layer}).aux.item();
    };
    EXPECT_NEAR(aux(false), balance_by_hand(output, false), 1e-12);
    EXPECT_NEAR(aux(true), balance_by_hand(output, true), 1e-12);
    EXPECT_GT(std::abs(aux(true) - aux(false)), 1e-3);
  }
}

// What one layer prefers, another one evens out only where they are pooled.
TEST(CausalLMLoss, OfEachLayerSeesWhatPoolingHides) {
  CausalLM::Output output;
  output.logits = Tensor::zeros({2, 3}, Dtype::kFloat64);
  for (const std::int64_t favourite : {0, 1}) {
    std::vector<double> logits(4, 0.0);
    for (std::size_t t = 0; t < 2; ++t) logits[2 * t + static_cast<std::size_t>(favourite)] = 30;
    output.router_logits.push_back(Tensor::from(logits, {2, 2}));
    output.expert_indices.push_back(Tensor::from(std::vector<std::int64_t>(2, favourite), {2, 1}));
  }
  const Tensor targets = Tensor::from(std::vector<std::int64_t>{0, 1}, {2});
  EXPECT_NEAR(causal_lm_loss(output, targets, 2, 1.0).aux.item(), 1.0, 1e-12);
  EXPECT_NEAR(causal_lm_loss(output, targets, 2, 1.0, {.per_layer = true}).aux.item(), 2.0, 1e-12);
}

TEST(CausalLMLoss, AddsAZLossByItsCoefficient) {
  const auto config = toy_config();
  CausalLM model(config, 5);
  const auto batch = toy_batch(config.vocab_size);
  const auto output = model(batch.tokens, batch.documents);
  const auto plain = causal_lm_loss(output, batch.targets, 40, 0.5);
  const auto with = causal_lm_loss(output, batch.targets, 40, 0.5, {.z_loss_coef = 0.25});
  double z = 0;
  for (const auto& logits : output.router_logits) z += ops::z_loss(logits).item();
  EXPECT_NEAR(with.objective.item(), plain.objective.item() + 0.25 * z * 10.0 / 40.0, 1e-13);
}

TEST(CausalLMLoss, TakesTheLoadOfSeveralMicroBatches) {
  const auto config = toy_config();
  CausalLM model(config, 5);
  const auto batch = toy_batch(config.vocab_size);
  const auto output = model(batch.tokens, batch.documents);
  for (const bool per_layer : {false, true}) {
    RouterLossOptions options{.per_layer = per_layer};
    const auto own = causal_lm_loss(output, batch.targets, 12, 0.5, options);
    options.load = {.tokens_per_expert = output.tokens_per_expert, .tokens = 13, .targets = 10};
    const auto same = causal_lm_loss(output, batch.targets, 12, 0.5, options);
    EXPECT_NEAR(same.aux.item(), own.aux.item(), 1e-13);
    EXPECT_NEAR(same.objective.item(), own.objective.item(), 1e-13);
  }
  const auto message = [&](std::vector<std::vector<std::int64_t>> counts) {
    return message_of<ValueError>([&] {
      causal_lm_loss(output, batch.targets, 12, 0.5,
                     {.load = RouterLossOptions::Load{
                          .tokens_per_expert = std::move(counts), .tokens = 13, .targets = 10}});
    });
  };
  EXPECT_EQ(message({{5, 5, 5, 5, 6}, {5, 5, 5, 5, 5}}),
            "causal_lm_loss: load must count 2 experts for each of its 13 tokens, got 25");
  EXPECT_EQ(message({{27, 0, 0, 0, -1}, {5, 5, 5, 5, 6}}),
            "causal_lm_loss: load must count 2 experts for each of its 13 tokens, got 26");
  EXPECT_EQ(message({{1, 1, 1, 1, 1}}), "causal_lm_loss: load must be of 2 mixture layers, got 1");
  EXPECT_EQ(message({{5, 5, 5, 5, 6}, {1}}), "causal_lm_loss: load must be of 5 experts, got 1");
}

TEST(CausalLMLoss, OfADenseModelHasNoAuxiliaryPart) {
  auto config = toy_config();
  config.mlp_only_layers = {0, 1};
  CausalLM model(config, 5);
  const auto result = gradients_of(model, toy_batch(config.vocab_size));
  EXPECT_EQ(result.loss.aux.item(), 0.0);
  EXPECT_DOUBLE_EQ(result.loss.objective.item(), result.loss.ce_sum.item() / 12.0);
}

}  // namespace
}  // namespace moegrad::models::causal_lm_loss_test
