// SPDX-License-Identifier: Apache-2.0
#include "models/qwen3_moe_loss.h"

#include "framework/tensor/fill.h"
#include "ops/shape_ops.h"
#include "tests/models/toy_models.h"
#include "tests/testing.h"

namespace moegrad::models {
namespace {

using testing::gradients_of;
using testing::message_of;
using testing::run;
using testing::toy_batch;
using testing::toy_config;

TEST(Qwen3MoeLoss, PartsOfAStepAddUpToTheWhole) {
  auto config = toy_config();
  config.router_aux_loss_coef = 0.0;  // the balance is taken per micro-batch
  Qwen3Moe model(config, 5);
  const auto batch = toy_batch(config.vocab_size, {0, 5, 13});
  const auto loss = [&](std::int64_t start, std::int64_t length,
                        std::vector<std::int64_t> cu_seqlens) {
    const auto output = run(model, clone(ops::narrow(batch.tokens, 0, start, length)), cu_seqlens);
    return qwen3_moe_loss(output, clone(ops::narrow(batch.targets, 0, start, length)), 10, 0.0)
        .objective.item();
  };
  EXPECT_NEAR(loss(0, 5, {0, 5}) + loss(5, 8, {0, 8}), loss(0, 13, {0, 5, 13}), 1e-14);
}

TEST(Qwen3MoeLoss, WeighsTheAuxiliaryLossByTheShareOfTargets) {
  const auto config = toy_config();
  Qwen3Moe model(config, 5);
  const auto batch = toy_batch(config.vocab_size);
  const auto output = run(model, batch.tokens, batch.cu_seqlens);
  const auto loss = qwen3_moe_loss(output, batch.targets, 40, 0.5);  // 10 valid targets of 13
  EXPECT_NEAR(loss.objective.item(),
              loss.ce_sum.item() / 40.0 + 0.5 * loss.aux.item() * 10.0 / 40.0, 1e-14);
  EXPECT_GT(loss.aux.item(), 1.0);
  EXPECT_EQ(message_of<ValueError>([&] { qwen3_moe_loss(output, batch.targets, 0, 0.5); }),
            "qwen3_moe_loss: global_targets must be >= 1, got 0");
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
}  // namespace moegrad::models
