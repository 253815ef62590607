// SPDX-License-Identifier: Apache-2.0
#include "models/qwen3_moe/loss.h"

#include <utility>
#include <vector>

#include "framework/tensor/fill.h"
#include "ops/aux_loss.h"
#include "ops/elementwise.h"
#include "ops/views.h"
#include "tests/models/qwen3_moe/toy_models.h"
#include "tests/testing.h"

namespace moegrad::models::qwen3_moe_loss_test {
namespace {

using test::gradients_of;
using test::message_of;
using test::toy_batch;
using test::toy_config;

TEST(Qwen3MoeLoss, PartsOfAStepAddUpToTheWhole) {
  auto config = toy_config();
  config.router_aux_loss_coef = 0.0;  // the balance is taken per micro-batch
  Qwen3Moe model(config, 5);
  const auto batch = toy_batch(config.vocab_size, {5, 8});
  const auto loss = [&](std::int64_t start, std::int64_t length,
                        const std::vector<std::int64_t>& lengths) {
    const auto output =
        model(clone(ops::narrow(batch.tokens, 0, start, length)), Documents::of_lengths(lengths));
    return qwen3_moe_loss(output, clone(ops::narrow(batch.targets, 0, start, length)), 10, 0.0)
        .objective.item();
  };
  EXPECT_NEAR(loss(0, 5, {5}) + loss(5, 8, {8}), loss(0, 13, {5, 8}), 1e-14);
}

TEST(Qwen3MoeLoss, WeighsTheAuxiliaryLossByTheShareOfTargets) {
  const auto config = toy_config();
  Qwen3Moe model(config, 5);
  const auto batch = toy_batch(config.vocab_size);
  const auto output = model(batch.tokens, batch.documents);
  const auto loss = qwen3_moe_loss(output, batch.targets, 40, 0.5);  // 10 valid targets of 13
  EXPECT_NEAR(loss.objective.item(),
              loss.ce_sum.item() / 40.0 + 0.5 * loss.aux.item() * 10.0 / 40.0, 1e-14);
  EXPECT_GT(loss.aux.item(), 1.0);
  EXPECT_EQ(message_of<ValueError>([&] { qwen3_moe_loss(output, batch.targets, 0, 0.5); }),
            "qwen3_moe_loss: global_targets must be >= 1, got 0");
}

// As the documentation of ops::z_loss says to use it.
TEST(Qwen3MoeLoss, TakesAZLossOfTheRoutersBesides) {
  auto config = toy_config();
  config.router_aux_loss_coef = 0.0;
  const auto batch = toy_batch(config.vocab_size, {5, 8});
  const auto step = [&](const std::vector<std::pair<std::int64_t, std::int64_t>>& parts,
                        double coefficient) {
    Qwen3Moe model(config, 5);
    double total = 0;
    for (const auto& [start, n] : parts) {
      const auto output = model(clone(ops::narrow(batch.tokens, 0, start, n)),
                                n == 13 ? Documents::of_lengths({5, 8}) : Documents::one(n));
      auto share = qwen3_moe_loss(output, clone(ops::narrow(batch.targets, 0, start, n)), 10, 0.0);
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

TEST(Qwen3MoeLoss, OfADenseModelHasNoAuxiliaryPart) {
  auto config = toy_config();
  config.mlp_only_layers = {0, 1};
  Qwen3Moe model(config, 5);
  const auto result = gradients_of(model, toy_batch(config.vocab_size));
  EXPECT_EQ(result.loss.aux.item(), 0.0);
  EXPECT_DOUBLE_EQ(result.loss.objective.item(), result.loss.ce_sum.item() / 12.0);
}

}  // namespace
}  // namespace moegrad::models::qwen3_moe_loss_test
