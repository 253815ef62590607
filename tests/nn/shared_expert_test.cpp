// SPDX-License-Identifier: Apache-2.0
// Shared experts of a mixture, and jitter.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "framework/autograd/checkpoint.h"
#include "framework/autograd/dropout_ids.h"
#include "nn/init.h"
#include "nn/jitter.h"
#include "nn/mlp.h"
#include "nn/moe.h"
#include "ops/copies.h"
#include "ops/elementwise.h"
#include "ops/linear.h"
#include "ops/split_cat.h"
#include "ops/views.h"
#include "tests/nn/small_modules.h"
#include "tests/testing.h"

namespace moegrad::nn::shared_expert_test {
namespace {

using namespace test;

constexpr std::int64_t kHidden = 6, kTokens = 4;

MoE::Config config_of(std::int64_t shared, bool gate) {
  return {.hidden_size = kHidden,
          .intermediate_size = 5,
          .num_experts = 4,
          .top_k = 2,
          .scores = RouterScores::kSigmoid,
          .num_groups = 2,
          .topk_groups = 1,
          .routed_scaling_factor = 1.5,
          .correction_bias = true,
          .shared_intermediate_size = shared,
          .shared_expert_gate = gate,
          .dtype = Dtype::kFloat64};
}

TEST(SharedExpert, AddsAnMlpOfAllTokens) {
  for (const bool gate : {false, true}) {
    MoE with(config_of(7, gate)), without(config_of(0, false));
    init_weights(with, 2, 0.7);
    init_weights(without, 2, 0.7);
    const auto parameters = with.named_parameters();
    const std::string name = gate ? "shared_expert" : "shared_experts";
    std::vector<std::string> expected{"gate.weight", "experts.gate_up_proj", "experts.down_proj"};
    for (const auto* part : {".gate_proj.weight", ".up_proj.weight", ".down_proj.weight"}) {
      expected.push_back(name + part);
    }
    if (gate) expected.emplace_back("shared_expert_gate.weight");
    ASSERT_EQ(names_of(parameters), expected);

    const Tensor x = randn({kTokens, kHidden});
    const auto weight = [&](std::size_t i) { return parameters[i].tensor; };
    Tensor shared =
        ops::linear(ops::silu(ops::linear(x, weight(3))) * ops::linear(x, weight(4)), weight(5));
    if (gate) shared = ops::sigmoid(ops::linear(x, weight(6))) * shared;
    EXPECT_TRUE(bitwise_equal(with.shared(x), shared));
    EXPECT_TRUE(bitwise_equal(with(x).hidden, without(x).hidden + shared));
    EXPECT_EQ(with(variable({0, kHidden})).hidden.shape(), (Shape{0, kHidden}));
  }
}

TEST(SharedExpert, GradientsMatchFiniteDifferences) {
  for (const bool gate : {false, true}) {
    MoE moe(config_of(3, gate));
    init_weights(moe, 2, 0.7);
    TensorList inputs = {variable({kTokens, kHidden})};
    const Tensor chosen = moe(inputs[0]).expert_indices;
    for (const auto& item : moe.named_parameters()) inputs.push_back(item.tensor);
    EXPECT_TRUE(gradients_agree(
        [&](const TensorList& in) -> TensorList {
          const auto output = moe(in[0], chosen);
          return {output.hidden, output.router_logits};
        },
        inputs));
  }
}

TEST(SharedExpert, IsANodeThatRunsOnItsOwn) {
  MoE moe(config_of(7, true));
  init_weights(moe, 2, 0.7);
  const Tensor x = variable({kTokens, kHidden});
  std::vector<std::string> events;
  for (const auto& [name, module] : moe.named_modules()) {
    module->register_forward_pre_hook([&, name = name](Module&) { events.push_back(name); });
  }
  const Tensor shared = moe.shared(x);
  std::ranges::sort(events);
  EXPECT_EQ(events, (std::vector<std::string>{"shared_expert", "shared_expert.down_proj",
                                              "shared_expert.gate_proj", "shared_expert.up_proj",
                                              "shared_expert_gate"}));
  const auto dispatched = moe.dispatch(x, moe.route(x));
  const Tensor y = moe.combine(moe.experts(dispatched), dispatched) + shared;
  EXPECT_TRUE(bitwise_equal(y, moe(x).hidden));
}

TEST(SharedExpert, MayBeReplaced) {
  MoE moe(config_of(7, false));
  init_weights(moe, 2, 0.7);
  // Another expert for all tokens.
  moe.replace("shared_experts", TensorModule(std::make_shared<Doubled>()));
  const Tensor x = randn({kTokens, kHidden});
  EXPECT_TRUE(bitwise_equal(moe.shared(x), ops::mul(x, 2.0)));
}

TEST(SharedExpert, MustBeThereForWhatNeedsIt) {
  MoE moe(config_of(0, false));
  EXPECT_EQ(message_of<Error>([&] {
              moe.shared(randn({kTokens, kHidden}));
            }),
            "MoE: shared needs a shared expert, got a mixture without one");
  EXPECT_EQ(message_of<ValueError>([&] { MoE{config_of(0, true)}; }),
            "MoE: shared_expert_gate needs a shared expert, got shared_intermediate_size 0");
  EXPECT_EQ(message_of<ValueError>([&] { MoE{config_of(-3, false)}; }),
            "Linear: out_features must be in [1, 2^31), got -3");
}

TEST(MoE, BalancesItsRouter) {
  MoE moe(config_of(0, false));
  moe.balance({0, 4, 4, 8}, 0.5);
  EXPECT_TRUE(bitwise_equal(moe.named_buffers().at(0).tensor,
                            Tensor::from(std::vector<float>{0.5, 0, 0, -0.5}, {4})));
}

// --- jitter

TEST(Jitter, VariesWithinItsBoundsInTrainingAlone) {
  Jitter jitter({.noise = 0.25});
  const Tensor x = Tensor::ones({100, 50}, Dtype::kFloat64);
  EXPECT_EQ(message_of<Error>([&] { jitter(x); }),
            "Jitter: training needs a DropoutIdsGuard with the seed, the step and the tokens' ids, "
            "or call eval()");
  const DropoutIdsGuard guard({.seed = 1, .step = 3});
  const Tensor y = jitter(x);
  double sum = 0, least = 2, most = 0;
  for (const double value : y.data<double>()) {
    sum += value;
    least = std::min(least, value);
    most = std::max(most, value);
  }
  EXPECT_NEAR(sum / 5000, 1, 3 * 0.25 / std::sqrt(3 * 5000));  // three sigma
  EXPECT_TRUE(0.75 <= least && least < 0.751 && 1.249 < most && most < 1.25);
  EXPECT_TRUE(bitwise_equal(jitter(x), y));
  jitter.eval();
  EXPECT_TRUE(bitwise_equal(jitter(x), x));
  jitter.train();
  const DropoutIdsGuard later({.seed = 1, .step = 4});
  EXPECT_FALSE(bitwise_equal(jitter(x), y));
}

TEST(Jitter, IsAFunctionOfTheTokenAndNotOfItsPlace) {
  Jitter jitter({.noise = 0.1});
  const Tensor x = randn({6, 9});
  const auto with_ids = [&](const Tensor& rows, const std::vector<std::int64_t>& ids) {
    const DropoutIdsGuard guard(
        {.seed = 1, .step = 3, .token_ids = Tensor::from(ids, {std::ssize(ids)})});
    return jitter(rows);
  };
  const Tensor whole = with_ids(x, {0, 1, 2, 3, 4, 5});
  EXPECT_TRUE(bitwise_equal(with_ids(ops::narrow(x, 0, 4, 2), {4, 5}),
                            ops::contiguous(ops::narrow(whole, 0, 4, 2))));
}

TEST(Jitter, RefusesNoiseThatChangesSigns) {
  for (const double noise : {1.0, -0.1}) {
    EXPECT_TRUE(message_of<ValueError>([&] {
                  Jitter({.noise = noise});
                }).starts_with("Jitter: noise must be in [0, 1), got "));
  }
}

}  // namespace
}  // namespace moegrad::nn::shared_expert_test
