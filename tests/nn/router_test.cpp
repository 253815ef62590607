// SPDX-License-Identifier: Apache-2.0
// The kinds of routers, and balancing by a bias.
#include "nn/router.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "framework/runtime/grad_mode.h"
#include "nn/init.h"
#include "nn/module_list.h"
#include "nn/moe.h"
#include "ops/elementwise.h"
#include "ops/order.h"
#include "ops/reduce.h"
#include "ops/router.h"
#include "ops/softmax.h"
#include "tests/testing.h"

namespace moegrad::nn::router_test {
namespace {

using namespace test;

constexpr std::int64_t kHidden = 6, kExperts = 8, kTokens = 5;

Router::Config config_of(RouterScores scores) {
  return {.hidden_size = kHidden,
          .num_experts = kExperts,
          .top_k = 2,
          .scores = scores,
          .dtype = Dtype::kFloat64};
}

/// Every kind: scores, groups or not, normalised or not, scaled or not, with a bias or without.
std::vector<Router::Config> kinds() {
  std::vector<Router::Config> all;
  for (const auto scores : {RouterScores::kSoftmax, RouterScores::kSigmoid}) {
    for (const std::int64_t topk_groups : {2, 4}) {
      for (const bool normalize : {false, true}) {
        for (const bool bias : {false, true}) {
          auto config = config_of(scores);
          config.num_groups = 4;
          config.topk_groups = topk_groups;
          config.normalize = normalize;
          config.correction_bias = bias;
          config.scaling_factor = bias ? 2.5 : 1;
          all.push_back(config);
        }
      }
    }
  }
  return all;
}

std::string text(const Router::Config& config) {
  return std::string(config.scores == RouterScores::kSoftmax ? "softmax" : "sigmoid") +
         ", groups " + std::to_string(config.topk_groups) + " of 4, normalize " +
         std::to_string(config.normalize) + ", bias " + std::to_string(config.correction_bias);
}

void set_bias(Router& router, const Tensor& bias) {
  auto state = router.state_dict();
  std::ranges::find(state, "e_score_correction_bias", &NamedTensor::name)->tensor = bias;
  router.load_state_dict(state);
}

TEST(Router, OfEveryKindIsItsDefinition) {
  const Tensor bias = randn({kExperts}, 7);
  for (const auto& config : kinds()) {
    Router router(config);
    init_weights(router, 2, 0.7);
    if (config.correction_bias) set_bias(router, bias);
    const auto [logits, weights, indices] = router(randn({kTokens, kHidden}));
    const bool softmax = config.scores == RouterScores::kSoftmax;
    for (std::int64_t t = 0; t < kTokens; ++t) {
      const auto row = [&](const Tensor& all) {
        return all.data<double>().subspan(static_cast<std::size_t>(t * all.dim(1)),
                                          static_cast<std::size_t>(all.dim(1)));
      };
      std::vector<double> scores;
      double all = 0;
      for (const double logit : row(logits)) {
        scores.push_back(softmax ? std::exp(logit) : 1 / (1 + std::exp(-logit)));
        all += std::exp(logit);
      }
      if (softmax)
        for (auto& score : scores) score /= all;
      std::vector<double> choice = scores;
      for (std::size_t e = 0; config.correction_bias && e < kExperts; ++e) {
        choice[e] += bias.data<double>()[e];
      }
      std::vector<std::int64_t> groups{0, 1, 2, 3}, best;
      std::ranges::sort(groups, [&](std::int64_t a, std::int64_t b) {  // pairs of experts
        const auto sum = [&](std::int64_t g) {
          return choice[static_cast<std::size_t>(2 * g)] +
                 choice[static_cast<std::size_t>(2 * g + 1)];
        };
        return sum(a) > sum(b);
      });
      for (std::int64_t i = 0; i < config.topk_groups; ++i) {
        best.push_back(2 * groups[static_cast<std::size_t>(i)]);
        best.push_back(best.back() + 1);
      }
      std::ranges::sort(best, [&](std::int64_t a, std::int64_t b) {
        return choice[static_cast<std::size_t>(a)] > choice[static_cast<std::size_t>(b)];
      });
      const auto first = scores[static_cast<std::size_t>(best[0])];
      const auto second = scores[static_cast<std::size_t>(best[1])];
      const double divisor = config.normalize ? first + second : 1;
      EXPECT_EQ(indices.data<std::int64_t>()[static_cast<std::size_t>(2 * t)], best[0]);
      EXPECT_EQ(indices.data<std::int64_t>()[static_cast<std::size_t>(2 * t + 1)], best[1]);
      EXPECT_NEAR(row(weights)[0], config.scaling_factor * first / divisor, 1e-14) << text(config);
      EXPECT_NEAR(row(weights)[1], config.scaling_factor * second / divisor, 1e-14);
    }
  }
}

/// At the experts that were chosen: a choice has no derivative.
TEST(Router, GradientsMatchFiniteDifferences) {
  for (const auto& config : kinds()) {
    Router router(config);
    init_weights(router, 2, 0.7);
    if (config.correction_bias) set_bias(router, randn({kExperts}, 7));
    const Tensor x = variable({kTokens, kHidden});
    const Tensor chosen = router(x).indices;
    TensorList inputs = {x};
    for (const auto& item : router.named_parameters()) inputs.push_back(item.tensor);
    EXPECT_EQ(inputs.size(), 2U) << "a bias is no parameter";
    EXPECT_TRUE(gradients_agree(
        [&](const TensorList& in) -> TensorList {
          const auto output = router(in[0], chosen);
          return {output.weights, output.logits};
        },
        inputs))
        << text(config);
  }
}

TEST(Router, TakesReplayedExpertsAndGivesTheChosenOnesTheSameBits) {
  for (const auto& config : kinds()) {
    Router router(config);
    init_weights(router, 2, 0.7);
    if (config.correction_bias) set_bias(router, randn({kExperts}, 7));
    const Tensor x = randn({kTokens, kHidden});
    const auto chosen = router(x);
    EXPECT_TRUE(bitwise_equal(router(x, chosen.indices).weights, chosen.weights)) << text(config);
    const Tensor others =
        Tensor::from(std::vector<std::int64_t>{7, 0, 3, 5, 6, 7, 1, 2, 4, 0}, {kTokens, 2});
    EXPECT_TRUE(bitwise_equal(router(x, others).indices, others)) << text(config);
    EXPECT_FALSE(bitwise_equal(router(x, others).weights, chosen.weights)) << text(config);
  }
}

TEST(Router, BalanceMovesTheBiasAgainstTheLoad) {
  auto config = config_of(RouterScores::kSigmoid);
  config.num_experts = 4;
  config.correction_bias = true;
  Router router(config);
  router.balance({10, 30, 20, 20}, 0.25);  // the mean is 20
  router.balance({0, 0, 0, 1}, 0.5);
  const auto state = router.state_dict();
  EXPECT_EQ(state[1].name, "e_score_correction_bias");
  EXPECT_TRUE(
      bitwise_equal(state[1].tensor, Tensor::from(std::vector<float>{0.75, 0.25, 0.5, -0.5}, {4})));
  EXPECT_EQ(router.named_parameters().size(), 1U);
}

TEST(Router, BalanceRefusesWhatIsNoLoad) {
  auto config = config_of(RouterScores::kSigmoid);
  Router plain(config);
  EXPECT_EQ(message_of<Error>([&] { plain.balance(std::vector<std::int64_t>(kExperts), 1); }),
            "Router: balance needs correction_bias, got a router without it");
  config.correction_bias = true;
  Router router(config);
  EXPECT_EQ(message_of<ValueError>([&] {
              router.balance({1, 2}, 1);
            }),
            "Router: balance needs 8 counts, one per expert, got 2");
  EXPECT_EQ(message_of<ValueError>([&] {
              router.balance({1, 2, 3, -4, 5, 6, 7, 8}, 1);
            }),
            "Router: counts of tokens must not be negative, got -4");
  for (const double rate : {-1.0, HUGE_VAL}) {
    EXPECT_TRUE(message_of<ValueError>([&] {
                  router.balance(std::vector<std::int64_t>(kExperts), rate);
                }).starts_with("Router: rate must be finite and >= 0, got "));
  }
  EXPECT_TRUE(
      bitwise_equal(router.state_dict()[1].tensor, Tensor::zeros({kExperts}, Dtype::kFloat32)));
}

/// max / mean of the loads after `steps` updates of a router that prefers the first experts.
double skew_after(int steps, double rate) {
  constexpr std::int64_t kMany = 2000;
  auto config = config_of(RouterScores::kSigmoid);
  config.correction_bias = true;
  Router router(config);
  init_weights(router, 2, 0.3);
  Tensor x = randn({kMany, kHidden}, 3);
  for (const auto& [name, tensor] : router.named_parameters()) {
    Tensor weight = tensor.detach();
    auto values = weight.mutable_data<double>();
    for (std::size_t e = 0; e < kExperts; ++e) {  // the first channel is 1 for all tokens
      values[e * kHidden] = 1.5 - 0.4 * static_cast<double>(e);
    }
  }
  auto values = x.mutable_data<double>();
  for (std::size_t t = 0; t < kMany; ++t) values[t * kHidden] = 1;
  for (int step = 0;; ++step) {
    std::vector<std::int64_t> counts(kExperts);
    for (const auto e : integers(router(x).indices)) ++counts[static_cast<std::size_t>(e)];
    if (step == steps)
      return static_cast<double>(std::ranges::max(counts)) / (2.0 * kMany / kExperts);
    router.balance(counts, rate);
  }
}

TEST(Router, BalanceBringsASkewRouterBelow1Point3TimesTheMeanIn60Steps) {
  EXPECT_GT(skew_after(0, 0.02), 2.5);
  EXPECT_LT(skew_after(60, 0.02), 1.3);
  EXPECT_GT(skew_after(60, 0), 2.5) << "it was the bias that balanced";
}

TEST(Router, RefusesChoicesThatCannotBe) {
  const auto message = [](auto change) {
    return message_of<ValueError>([&] {
      auto config = config_of(RouterScores::kSigmoid);
      change(config);
      Router{config};
    });
  };
  EXPECT_EQ(message([](auto& c) { c.num_groups = 3; }),
            "Router: num_groups must divide the 8 experts, got 3");
  EXPECT_EQ(message([](auto& c) { c.num_groups = -4; }),
            "Router: num_groups must divide the 8 experts, got -4");
  EXPECT_EQ(message([](auto& c) { c.topk_groups = 2; }),
            "Router: topk_groups must be in [1, 1] (num_groups), got 2");
  EXPECT_EQ(message([](auto& c) {
              c.num_groups = 8;
              c.topk_groups = 1;
            }),
            "Router: k must be in [1, 1], the experts of 1 of 8 groups, got 2");
  EXPECT_EQ(message([](auto& c) { c.scaling_factor = 0; }),
            "Router: scaling_factor must be positive and finite, got 0");
  EXPECT_EQ(message([](auto& c) { c.scaling_factor = std::nan(""); }),
            "Router: scaling_factor must be positive and finite, got nan");
}

// Several layers of one model, in which one warning is enough.
class Mixtures final : public Callable<Mixtures> {
 public:
  explicit Mixtures(std::int64_t top_k, bool normalize) {
    for (int i = 0; i < 2; ++i) {
      layers_.emplace_back({.hidden_size = kHidden,
                            .intermediate_size = 4,
                            .num_experts = 4,
                            .top_k = top_k,
                            .norm_topk_prob = normalize,
                            .dtype = Dtype::kFloat64});
    }
    register_module("layers", layers_);
  }
  Tensor forward(const Tensor& x) {
    Tensor y = x;
    for (auto& layer : layers_) y = y + layer(y).hidden;
    return y;
  }

 private:
  ModuleList<MoE> layers_;
};

TEST(Router, WarnsOnceThatATopOneRouterWithNormalizedWeightsGetsNoGradient) {
  const auto run = [](std::int64_t top_k, bool normalize, double& largest) {
    Mixtures model(top_k, normalize);
    init_weights(model, 1, 0.5);
    ::testing::internal::CaptureStderr();
    for (int i = 0; i < 2; ++i) {
      const Tensor y = model(randn({kTokens, kHidden}));
      ops::sum(ops::square(y)).backward();
    }
    largest = 0;
    for (const auto& [name, parameter] : model.named_parameters()) {
      if (!name.ends_with("gate.weight")) continue;
      largest = std::max(largest, ops::max(ops::abs(parameter.grad())).item());
    }
    return ::testing::internal::GetCapturedStderr();
  };
  double largest = -1;
  const auto text = run(1, true, largest);
  EXPECT_EQ(largest, 0.0);
  const std::string warning =
      "warning [rank 0] Router: with top_k 1 and normalized weights each weight is 1, so auxiliary "
      "losses alone train the router; set normalize (norm_topk_prob) to false, or top_k to 2 or "
      "more, for it to learn from the loss\n";
  EXPECT_TRUE(text.ends_with(warning)) << text;
  EXPECT_EQ(std::ranges::count(text, '\n'), 1) << text;
  EXPECT_EQ(run(1, false, largest), "");
  EXPECT_GT(largest, 0.0);
  EXPECT_EQ(run(2, true, largest), "");
  EXPECT_GT(largest, 0.0);
  Mixtures read(1, true);
  ::testing::internal::CaptureStderr();
  {
    const NoGradGuard no_grad;
    read(randn({kTokens, kHidden}));
  }
  read.eval();
  read(randn({kTokens, kHidden}));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace moegrad::nn::router_test
