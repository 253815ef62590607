// SPDX-License-Identifier: Apache-2.0
#include "tools/check_golden/golden_checks.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/tools/check_golden/golden_samples.h"
#include "tools/check_golden/golden_limits.h"
#include "tools/check_golden/golden_routing.h"

namespace moegrad::tools::golden_checks_test {
namespace {

using test::message_of;

TEST(GoldenChecks, HoldForWhatIsExpected) {
  const auto made = golden_sample();
  for (const auto dtype : {Dtype::kFloat64, Dtype::kFloat32}) {
    const auto checks = check_golden(made.golden, made.results, dtype);
    Names quantities;
    for (const auto& check : checks) quantities.push_back(check.quantity);
    EXPECT_EQ(quantities,
              (Names{"logits", "hidden states (2 tensors)", "router logits", "router margin",
                     "top-k experts, other tokens' choices", "top-k weights", "tokens per expert",
                     "loss", "cross-entropy", "auxiliary loss", "gradients (2 tensors)",
                     "gradients, rounded to fp32 (1 tensor)", "gradients' figures (3 tensors)",
                     "gradients' norm"}));
    EXPECT_EQ(failures(checks), Names{});
  }
}

TEST(GoldenChecks, HoldEachQuantityToItsLimit) {
  struct Case {
    std::string quantity;
    double GoldenLimits::*limit;
    std::function<void(GoldenComputed&, double)> shift;
  };
  const std::vector<Case> cases = {
      {"logits", &GoldenLimits::logits,
       [](auto& c, double by) { c.logits = shifted(c.logits, by, 5); }},
      {"hidden states", &GoldenLimits::logits,
       [](auto& c, double by) { c.hidden[1] = shifted(c.hidden[1], -by, 2); }},
      // The least of the logits: no margin depends on it.
      {"router logits", &GoldenLimits::router_logits,
       [](auto& c, double by) { c.routing.logits[0] = shifted(c.routing.logits[0], by, 2); }},
      {"top-k weights", &GoldenLimits::router_logits,
       [](auto& c, double by) { c.routing.weights[0] = shifted(c.routing.weights[0], by, 1); }},
      {"loss", &GoldenLimits::loss, [](auto& c, double by) { c.loss += by; }},
      {"cross-entropy", &GoldenLimits::loss, [](auto& c, double by) { c.ce -= by; }},
      {"auxiliary loss", &GoldenLimits::loss, [](auto& c, double by) { c.aux += by; }},
  };
  for (const auto dtype : {Dtype::kFloat64, Dtype::kFloat32}) {
    for (const auto& [quantity, limit, shift] : cases) {
      auto within = golden_sample(), beyond = golden_sample();
      shift(within.results.batch, 0.9 * limits_of(dtype).*limit);
      shift(beyond.results.batch, 1.1 * limits_of(dtype).*limit);
      EXPECT_EQ(failures(within, dtype), Names{}) << quantity;
      EXPECT_EQ(failures(beyond, dtype), Names{quantity});
    }
  }
}

TEST(GoldenChecks, HoldGradientsToTheirLimitRelativeToEachTensor) {
  for (const auto dtype : {Dtype::kFloat64, Dtype::kFloat32}) {
    for (const std::size_t i : {0U, 1U}) {  // stored in float64, and rounded to float32
      const auto& limits = limits_of(dtype);
      const double limit = i == 0 ? limits.gradient : limits.rounded;
      for (const double factor : {0.3, 1.5}) {
        auto made = golden_sample();
        auto& tensor = made.results.batch.gradients[i].tensor;
        tensor = shifted(tensor, factor * limit * stats_of(tensor).l2, 1);
        made.golden.expected.gradient_stats.clear();
        made.golden.expected.gradient_l2.reset();
        const auto* const quantity = i == 0 ? "gradients" : "gradients, rounded to fp32";
        EXPECT_EQ(failures(made, dtype), factor < 1 ? Names{} : Names{quantity}) << i;
      }
    }
  }
}

TEST(GoldenChecks, HoldEachFigureOfAGradientToItsLimit) {
  const std::vector<double GoldenStats::*> figures = {&GoldenStats::l2, &GoldenStats::sum,
                                                      &GoldenStats::max_abs, &GoldenStats::dot_cos};
  for (std::size_t i = 0; i < figures.size(); ++i) {
    auto made = golden_sample();
    auto& stats = made.golden.expected.gradient_stats["w"];  // of ten elements
    const double unit = stats.l2 * (i % 2 == 0 ? 1.0 : std::sqrt(10.0));
    stats.*figures[i] += 0.9e-11 * unit;
    EXPECT_EQ(failures(made), Names{}) << i;
    stats.*figures[i] += 0.2e-11 * unit;
    EXPECT_EQ(failures(made), Names{"gradients' figures"}) << i;
  }
}

TEST(GoldenChecks, FailForNan) {
  auto made = golden_sample();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  made.results.batch.logits = shifted(made.results.batch.logits, nan, 3);
  made.results.batch.loss = nan;
  made.results.batch.gradients[0].tensor = shifted(made.results.batch.gradients[0].tensor, nan);
  EXPECT_EQ(failures(made),
            (Names{"logits", "loss", "gradients", "gradients' figures", "gradients' norm"}));
}

TEST(GoldenChecks, WantZeroGradientsToBeZeroExactly) {
  auto made = golden_sample();
  made.results.batch.gradients[2].tensor = golden_values({0.0, 1e-300}, {2});
  EXPECT_EQ(failures(made), (Names{"gradients", "gradients' figures"}));
  EXPECT_EQ(failures(made, Dtype::kFloat32), (Names{"gradients", "gradients' figures"}));
}

TEST(GoldenChecks, CompareAGradientWithoutDigitsWithAllOthers) {
  auto made = golden_sample();
  const auto expect = [&](double expected, std::initializer_list<double> computed,
                          const Names& fails) {
    const Tensor gradient = golden_values({0.0, expected}, {2});
    made.golden.expected.gradients[2].tensor = gradient;
    made.golden.expected.gradient_stats["z"] = stats_of(gradient);
    made.results.batch.gradients[2].tensor = golden_values(computed, {2});
    EXPECT_EQ(failures(made), fails) << expected;
  };
  const Names gradients = {"gradients", "gradients' figures"};
  expect(1e-16, {0.0, 0.0}, {});
  expect(1e-16, {-2e-16, 3e-16}, {});
  expect(1e-16, {0.0, 1e-8}, gradients);
  expect(1e-11, {0.0, 1e-11 + 1e-14}, gradients);  // one of this norm has digits
}

TEST(GoldenChecks, CompareChoicesThatAreNotRounding) {
  const Names choices = {"top-k experts, other tokens' choices", "tokens per expert"};
  const auto choose = [](GoldenSample made, std::int64_t token, std::int64_t expert,
                         bool replayed) {
    auto& routing = made.results.batch.routing;
    Tensor experts = clone(routing.experts[0]);
    auto& counts = routing.tokens_per_expert[0];
    auto& chosen = experts.mutable_data<std::int64_t>()[static_cast<std::size_t>(token)];
    --counts[static_cast<std::size_t>(chosen)];
    ++counts[static_cast<std::size_t>(expert)];
    chosen = expert;
    routing.experts[0] = experts;
    made.results.batch.replayed = replayed;
    return made;
  };
  // The first token's margin is 0.4, the second one's 1e-5: one count may move in float32.
  EXPECT_EQ(failures(choose(golden_sample(), 0, 2, false), Dtype::kFloat32), Names{choices[0]});
  EXPECT_EQ(failures(choose(choose(golden_sample(), 0, 2, false), 1, 2, false), Dtype::kFloat32),
            choices);
  EXPECT_EQ(failures(choose(golden_sample(), 1, 0, false), Dtype::kFloat32), Names{});
  EXPECT_EQ(failures(choose(golden_sample(), 1, 0, false), Dtype::kFloat64), choices);
  // If a run was given its experts, what its logits would have chosen is compared.
  auto given = golden_sample();
  given.results.batch.replayed = true;
  EXPECT_EQ(failures(given), Names{});
  auto& logits = given.results.batch.routing.logits[0];
  logits = golden_values({0.1, 0.5, -0.2, 0.3, 0.30001, 0.0}, {2, 3});
  EXPECT_EQ(failures(given, Dtype::kFloat32), (Names{"router logits", choices[0]}));
}

/// The sample as a folder of a model that transformers 5 saved, and one generation.
GoldenSample pretrained_sample() {
  auto made = golden_sample();
  auto& golden = made.golden;
  golden.kind = GoldenKind::kPretrained;
  golden.expected = {};
  golden.expected.losses.emplace_back().loss = 3.0;
  golden.expected.logits = made.results.batch.logits;
  golden.expected.gradients = made.results.batch.gradients;
  golden.expected_float32 = golden.expected;
  golden.generations = {{.prompt = {1, 2}, .tokens = {3, 0, 3}, .smallest_margin = 0.5}};
  made.results.generations = golden.generations;
  return made;
}

TEST(GoldenChecks, HoldAPretrainedModelToBothRunsOfTheReference) {
  const auto made = pretrained_sample();
  const auto quantities = [&](Dtype dtype) {
    Names names;
    for (const auto& check : check_golden(made.golden, made.results, dtype)) {
      EXPECT_TRUE(check.holds()) << check.quantity;
      names.push_back(check.quantity);
    }
    return names;
  };
  const Names generation = {"greedy generation, other tokens",
                            "greedy generation, smallest margin"};
  EXPECT_EQ(quantities(Dtype::kFloat64),
            (Names{"logits", "loss", "gradients (3 tensors)", generation[0], generation[1]}));
  EXPECT_EQ(quantities(Dtype::kFloat32),
            (Names{"logits", "loss", "gradients (3 tensors)", "fp32: logits", "fp32: loss",
                   "fp32: gradients (3 tensors)", generation[0], generation[1]}));
}

TEST(GoldenChecks, HoldEachQuantityOfAPretrainedModelToItsLimit) {
  for (const auto dtype : {Dtype::kFloat64, Dtype::kFloat32}) {
    const auto& limits = pretrained_limits_of(dtype);
    for (const bool reference_float32 : {false, true}) {
      for (const double factor : {0.9, 1.1}) {
        const auto expect = [&](const std::function<void(GoldenValues&)>& change,
                                const std::string& quantity) {
          auto made = pretrained_sample();
          change(reference_float32 ? made.golden.expected_float32 : made.golden.expected);
          const bool compared = !reference_float32 || dtype == Dtype::kFloat32;
          const bool fails = factor > 1 && compared;
          EXPECT_EQ(failures(made, dtype),
                    fails ? Names{(reference_float32 ? "fp32: " : "") + quantity} : Names{});
        };
        expect([&](auto& v) { v.logits = shifted(v.logits, factor * limits.logits, 5); }, "logits");
        expect([&](auto& v) { *v.losses[0].loss += factor * limits.loss; }, "loss");
        expect(
            [&](auto& v) {
              auto& tensor = v.gradients[0].tensor;
              tensor = shifted(tensor, factor * limits.gradient * stats_of(tensor).l2, 1);
            },
            "gradients");
      }
    }
  }
}

TEST(GoldenChecks, CompareASmallGradientOfAPretrainedModelWithAHundredthOfAll) {
  const auto& limits = pretrained_limits_of(Dtype::kFloat64);
  auto made = pretrained_sample();
  const double all = std::hypot(stats_of(made.results.batch.gradients[0].tensor).l2,
                                stats_of(made.results.batch.gradients[1].tensor).l2);
  const double allowed = limits.gradient * 1e-2 * all;
  for (const double factor : {0.9, 1.1}) {
    made.golden.expected.gradients[2].tensor = golden_values({0.0, factor * allowed}, {2});
    EXPECT_EQ(failures(made), factor < 1 ? Names{} : Names{"gradients"});
  }
  made.golden.expected.gradients[2].tensor = golden_values({0.0, 1e-4 * all}, {2});
  made.results.batch.gradients[2].tensor = golden_values({0.0, 1e-4 * all + 1.1 * allowed}, {2});
  EXPECT_EQ(failures(made), Names{"gradients"});
  made.results.batch.gradients[2].tensor = golden_values({0.0, 1e-4 * all + 0.9 * allowed}, {2});
  EXPECT_EQ(failures(made), Names{});
}

TEST(GoldenChecks, DoNotCompareTheReferencesFloat32RunWhereAChoiceIsRounding) {
  auto made = pretrained_sample();
  made.golden.expected_float32.logits = shifted(made.golden.expected_float32.logits, 1.0);
  EXPECT_EQ(failures(made, Dtype::kFloat32), Names{"fp32: logits"});
  made.results.batch.replayed = true;
  EXPECT_EQ(failures(made, Dtype::kFloat32), Names{});
}

TEST(GoldenChecks, CompareEachTokenOfAGeneration) {
  for (const auto dtype : {Dtype::kFloat64, Dtype::kFloat32}) {
    auto made = pretrained_sample();
    made.results.generations[0].tokens[1] = 2;
    EXPECT_EQ(failures(made, dtype), Names{"greedy generation, other tokens"});
    made = pretrained_sample();
    made.results.generations[0].smallest_margin += 0.9 * kGenerationMargin;
    EXPECT_EQ(failures(made, dtype), Names{});
    made.results.generations[0].smallest_margin += 0.2 * kGenerationMargin;
    EXPECT_EQ(failures(made, dtype), Names{"greedy generation, smallest margin"});
  }
}

TEST(GoldenChecks, NameWhatTheModelDoesNotHave) {
  auto made = golden_sample();
  made.golden.expected.gradients.push_back({"no.such", Tensor::zeros({1}, Dtype::kFloat64)});
  EXPECT_EQ(message_of<ValueError>([&] { failures(made); }),
            "the folder expects something of 'no.such', which its model does not have");
  made = golden_sample();
  made.golden.expected.gradients[0].tensor = Tensor::zeros({2, 5}, Dtype::kFloat64);
  EXPECT_EQ(message_of<ShapeError>([&] { failures(made); }),
            "the folder expects [2, 5] where its model gives [5, 2]");
  made = golden_sample();
  made.golden.expected.tokens_per_expert[0] = {1, 1};
  EXPECT_EQ(message_of<ValueError>([&] { failures(made); }),
            "the folder's tokens_per_expert must be of 3 experts, got 2");
}

TEST(GoldenParting, IsByRoundingIfAllChoicesOfTheFirstLayerThatDiffersAre) {
  const auto routing_of = [](std::vector<std::int64_t> first, std::vector<std::int64_t> second) {
    const Tensor logits = golden_values({0.5, 0.1, -0.2, 0.3, 0.30001, 0.0}, {2, 3});
    const Tensor weights = golden_values({0.5, 0.4}, {2, 1});
    return GoldenRouting{.logits = {logits, logits},
                         .experts = {Tensor::from(first, {2, 1}), Tensor::from(second, {2, 1})},
                         .weights = {weights, weights},
                         .tokens_per_expert = {}};
  };
  const auto reference = routing_of({0, 1}, {0, 1});
  const models::CausalLMConfig config = {.num_experts = 3, .num_experts_per_tok = 1};
  const auto difference = [&](const GoldenRouting& routing) {
    return routing_difference(routing, reference, config);
  };
  EXPECT_EQ(difference(routing_of({0, 1}, {0, 1})), RoutingDifference::kNone);
  EXPECT_EQ(difference(routing_of({0, 0}, {0, 1})), RoutingDifference::kRounding);
  EXPECT_EQ(difference(routing_of({0, 1}, {0, 0})), RoutingDifference::kRounding);
  EXPECT_EQ(difference(routing_of({0, 0}, {2, 1})), RoutingDifference::kRounding);  // follows
  EXPECT_EQ(difference(routing_of({1, 0}, {0, 1})), RoutingDifference::kOther);
  EXPECT_EQ(difference(routing_of({0, 1}, {1, 1})), RoutingDifference::kOther);
}

}  // namespace
}  // namespace moegrad::tools::golden_checks_test
