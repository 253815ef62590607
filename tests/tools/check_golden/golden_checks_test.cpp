// SPDX-License-Identifier: Apache-2.0
#include "tools/check_golden/golden_checks.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/testing.h"
#include "tools/check_golden/golden_compare.h"
#include "tools/check_golden/golden_limits.h"
#include "tools/check_golden/golden_routing.h"

namespace moegrad::tools::golden_checks_test {
namespace {

using test::message_of;
using test::randn;

Tensor values(const std::vector<double>& all, const Shape& shape) {
  return Tensor::from(all, shape);
}

/// Two tokens, three experts of which one is chosen, one parameter with a gradient.
struct Made {
  GoldenCase golden;
  GoldenResults results;
};

Made made() {
  Made made;
  auto& golden = made.golden;
  golden.config.num_hidden_layers = 1;
  golden.config.num_experts = 3;
  golden.config.num_experts_per_tok = 1;
  auto& expected = golden.expected;
  auto& computed = made.results.batch;

  expected.losses = {{.loss = 3.0, .ce = 2.0, .aux = 1.0}};
  computed.loss = 3.0;
  computed.ce = 2.0;
  computed.aux = 1.0;
  expected.logits = computed.logits = randn({2, 4}, 1);
  expected.hidden = {randn({2, 3}, 2), randn({2, 3}, 3)};
  computed.hidden = expected.hidden;
  // The second token's best two are 1e-5 apart.
  const Tensor logits = values({0.5, 0.1, -0.2, 0.3, 0.30001, 0.0}, {2, 3});
  const Tensor experts = Tensor::from(std::vector<std::int64_t>{0, 1}, {2, 1});
  const Tensor weights = values({0.5, 0.4}, {2, 1});
  expected.router_logits = {{0, logits}};
  expected.topk_indices = {{0, experts}};
  expected.topk_weights = {{0, weights}};
  expected.tokens_per_expert = {{0, {1, 1, 0}}};
  expected.router_margin = 0.30001 - 0.3;
  computed.routing = {.logits = {logits},
                      .experts = {experts},
                      .weights = {weights},
                      .tokens_per_expert = {{1, 1, 0}}};
  computed.gradients = {{"w", randn({5, 2}, 4)}, {"r", randn({3}, 5)}, {"z", randn({2}, 6)}};
  Tensor zero = Tensor::zeros({2}, Dtype::kFloat64);
  computed.gradients[2].tensor = zero;
  expected.gradients = {{"w", computed.gradients[0].tensor},
                        {"r", to_dtype(computed.gradients[1].tensor, Dtype::kFloat32)},
                        {"z", zero}};
  double squares = 0;
  for (const auto& [name, tensor] : computed.gradients) {
    expected.gradient_stats[name] = stats_of(tensor);
    squares += std::pow(stats_of(tensor).l2, 2);
  }
  expected.gradient_l2 = std::sqrt(squares);
  return made;
}

Tensor shifted(const Tensor& tensor, double amount, std::size_t element = 0) {
  Tensor result = clone(tensor);
  result.mutable_data<double>()[element] += amount;
  return result;
}

/// The quantities, without their counts of tensors, that do not hold.
std::vector<std::string> failures(const std::vector<GoldenCheck>& checks) {
  std::vector<std::string> failures;
  for (const auto& check : checks) {
    if (!check.holds()) failures.push_back(check.quantity.substr(0, check.quantity.find(" (")));
  }
  return failures;
}

std::vector<std::string> failures(const Made& made, Dtype dtype = Dtype::kFloat64) {
  return failures(check_golden(made.golden, {made.results}, dtype));
}

using Names = std::vector<std::string>;

TEST(GoldenChecks, HoldForWhatIsExpected) {
  const auto made = golden_checks_test::made();
  for (const auto dtype : {Dtype::kFloat64, Dtype::kFloat32}) {
    const auto checks = check_golden(made.golden, {made.results}, dtype);
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
      auto within = made(), beyond = made();
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
        auto made = golden_checks_test::made();
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
    auto made = golden_checks_test::made();
    auto& stats = made.golden.expected.gradient_stats["w"];  // of ten elements
    const double unit = stats.l2 * (i % 2 == 0 ? 1.0 : std::sqrt(10.0));
    stats.*figures[i] += 0.9e-11 * unit;
    EXPECT_EQ(failures(made), Names{}) << i;
    stats.*figures[i] += 0.2e-11 * unit;
    EXPECT_EQ(failures(made), Names{"gradients' figures"}) << i;
  }
}

TEST(GoldenChecks, FailForNan) {
  auto made = golden_checks_test::made();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  made.results.batch.logits = shifted(made.results.batch.logits, nan, 3);
  made.results.batch.loss = nan;
  made.results.batch.gradients[0].tensor = shifted(made.results.batch.gradients[0].tensor, nan);
  EXPECT_EQ(failures(made),
            (Names{"logits", "loss", "gradients", "gradients' figures", "gradients' norm"}));
}

TEST(GoldenChecks, WantZeroGradientsToBeZeroExactly) {
  auto made = golden_checks_test::made();
  made.results.batch.gradients[2].tensor = values({0.0, 1e-300}, {2});
  EXPECT_EQ(failures(made), (Names{"gradients", "gradients' figures"}));
  EXPECT_EQ(failures(made, Dtype::kFloat32), (Names{"gradients", "gradients' figures"}));
}

TEST(GoldenChecks, CompareAGradientWithoutDigitsWithAllOthers) {
  auto made = golden_checks_test::made();
  made.golden.expected.gradients[2].tensor = values({0.0, 1e-16}, {2});
  made.golden.expected.gradient_stats["z"] = stats_of(values({0.0, 1e-16}, {2}));
  EXPECT_EQ(failures(made), Names{});
  made.results.batch.gradients[2].tensor = values({-2e-16, 3e-16}, {2});
  EXPECT_EQ(failures(made), Names{});
  made.results.batch.gradients[2].tensor = values({0.0, 1e-8}, {2});
  EXPECT_EQ(failures(made), (Names{"gradients", "gradients' figures"}));
  // One of norm 1e-11 has digits.
  made.golden.expected.gradients[2].tensor = values({0.0, 1e-11}, {2});
  made.golden.expected.gradient_stats["z"] = stats_of(values({0.0, 1e-11}, {2}));
  made.results.batch.gradients[2].tensor = values({0.0, 1e-11 + 1e-14}, {2});
  EXPECT_EQ(failures(made), (Names{"gradients", "gradients' figures"}));
}

TEST(GoldenChecks, LookAtEveryRank) {
  const auto made = golden_checks_test::made();
  auto other = made.results;
  other.batch.logits = shifted(other.batch.logits, 1e-9);
  other.batch.aux += 1e-9;
  EXPECT_EQ(failures(check_golden(made.golden, {made.results, other}, Dtype::kFloat64)),
            (Names{"logits", "auxiliary loss"}));
}

TEST(GoldenChecks, CompareChoicesThatAreNotRounding) {
  const Names choices = {"top-k experts, other tokens' choices", "tokens per expert"};
  const auto choose = [](Made made, std::int64_t token, std::int64_t expert, bool replayed) {
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
  EXPECT_EQ(failures(choose(made(), 0, 2, false), Dtype::kFloat32), Names{choices[0]});
  EXPECT_EQ(failures(choose(choose(made(), 0, 2, false), 1, 2, false), Dtype::kFloat32), choices);
  EXPECT_EQ(failures(choose(made(), 1, 0, false), Dtype::kFloat32), Names{});
  EXPECT_EQ(failures(choose(made(), 1, 0, false), Dtype::kFloat64), choices);
  // Of a run that was given its experts, what its logits would have chosen is compared.
  auto given = golden_checks_test::made();
  given.results.batch.replayed = true;
  EXPECT_EQ(failures(given), Names{});
  auto& logits = given.results.batch.routing.logits[0];
  logits = values({0.1, 0.5, -0.2, 0.3, 0.30001, 0.0}, {2, 3});
  EXPECT_EQ(failures(given, Dtype::kFloat32), (Names{"router logits", choices[0]}));
}

TEST(GoldenChecks, NameWhatTheModelDoesNotHave) {
  auto made = golden_checks_test::made();
  made.golden.expected.gradients.push_back({"no.such", Tensor::zeros({1}, Dtype::kFloat64)});
  EXPECT_EQ(message_of<ValueError>([&] { failures(made); }),
            "the folder expects something of 'no.such', which its model does not have");
  made = golden_checks_test::made();
  made.golden.expected.gradients[0].tensor = Tensor::zeros({2, 5}, Dtype::kFloat64);
  EXPECT_EQ(message_of<ShapeError>([&] { failures(made); }),
            "the folder expects [2, 5] where its model gives [5, 2]");
  made = golden_checks_test::made();
  made.golden.expected.tokens_per_expert[0] = {1, 1};
  EXPECT_EQ(message_of<ValueError>([&] { failures(made); }),
            "the folder's tokens_per_expert must be of 3 experts, got 2");
}

TEST(GoldenParting, IsByRoundingIfAllChoicesOfTheFirstLayerThatDiffersAre) {
  const auto routing_of = [](std::vector<std::int64_t> first, std::vector<std::int64_t> second) {
    const Tensor logits = values({0.5, 0.1, -0.2, 0.3, 0.30001, 0.0}, {2, 3});
    const Tensor weights = values({0.5, 0.4}, {2, 1});
    return GoldenRouting{.logits = {logits, logits},
                         .experts = {Tensor::from(first, {2, 1}), Tensor::from(second, {2, 1})},
                         .weights = {weights, weights},
                         .tokens_per_expert = {}};
  };
  const auto reference = routing_of({0, 1}, {0, 1});
  EXPECT_EQ(routing_difference(routing_of({0, 1}, {0, 1}), reference), RoutingDifference::kNone);
  EXPECT_EQ(routing_difference(routing_of({0, 0}, {0, 1}), reference),
            RoutingDifference::kRounding);
  EXPECT_EQ(routing_difference(routing_of({0, 1}, {0, 0}), reference),
            RoutingDifference::kRounding);
  EXPECT_EQ(routing_difference(routing_of({0, 0}, {2, 1}), reference),
            RoutingDifference::kRounding);  // follows
  EXPECT_EQ(routing_difference(routing_of({1, 0}, {0, 1}), reference), RoutingDifference::kOther);
  EXPECT_EQ(routing_difference(routing_of({0, 1}, {1, 1}), reference), RoutingDifference::kOther);
}

/// Two steps and one parameter afterwards.
Made trained(bool clipped) {
  auto made = golden_checks_test::made();
  GoldenVariant variant;
  variant.name = "v";
  variant.lr = {0.1, 0.05};
  variant.optimizer.lr = 0.1;
  variant.optimizer.cosine = clipped;
  if (clipped) variant.optimizer.clip = 1.0;
  variant.loss = {5.0, 4.0};
  variant.ce = {4.5, 3.5};
  variant.aux = {0.5, 0.5};
  variant.grad_norm = {2.0, 8.0};
  variant.final_eval = {.loss = 3.0, .ce = 2.5, .aux = 0.5};
  const Tensor parameter = values({3.0, -4.0}, {2});
  variant.final_parameters = {{"w", to_dtype(parameter, Dtype::kFloat32)}};
  variant.final_stats = {{"w", stats_of(parameter)}};
  GoldenTrained result{.lr = variant.lr,
                       .loss = variant.loss,
                       .ce = variant.ce,
                       .aux = variant.aux,
                       .grad_norm = variant.grad_norm,
                       .routing = {},
                       .replayed = false,
                       .final_eval = {.loss = 3.0, .ce = 2.5, .aux = 0.5},
                       .parameters = {{"w", parameter}}};
  made.golden.variants = {variant};
  made.results.variants = {result};
  return made;
}

TEST(GoldenTraining, HoldsEachQuantityToItsLimit) {
  const auto expect = [](Dtype dtype, bool clipped, const std::string& quantity, double limit,
                         const std::function<void(GoldenTrained&, double)>& shift) {
    auto within = trained(clipped), beyond = trained(clipped);
    shift(within.results.variants[0], 0.9 * limit);
    shift(beyond.results.variants[0], 1.1 * limit);
    EXPECT_EQ(failures(within, dtype), Names{}) << quantity;
    EXPECT_EQ(failures(beyond, dtype), Names{"v: " + quantity});
  };
  for (const bool clipped : {false, true}) {
    for (const auto dtype : {Dtype::kFloat64, Dtype::kFloat32}) {
      const bool narrow = dtype == Dtype::kFloat32;
      const double loss = !narrow ? 1e-10 : clipped ? 2e-5 : 1e-4;
      const double norm = !narrow ? 1e-10 : clipped ? 3e-5 : 2e-4;
      expect(dtype, clipped, "loss", loss, [](auto& t, double by) { t.loss[1] += by; });
      expect(dtype, clipped, "cross-entropy", loss, [](auto& t, double by) { t.ce[0] -= by; });
      expect(dtype, clipped, "auxiliary loss", loss, [](auto& t, double by) { t.aux[1] += by; });
      expect(dtype, clipped, "gradient norm", norm,
             [](auto& t, double by) { t.grad_norm[1] += 8.0 * by; });
      expect(dtype, clipped, "learning rate", 1e-15,
             [](auto& t, double by) { t.lr[1] += 0.1 * by; });
      expect(dtype, clipped, "afterwards, loss", loss,
             [](auto& t, double by) { t.final_eval.loss += by; });
      expect(dtype, clipped, "afterwards, auxiliary loss", loss,
             [](auto& t, double by) { t.final_eval.aux += by; });
    }
  }
}

TEST(GoldenTraining, HoldsParametersToTheirLimits) {
  const auto shift = [](Made made, double by) {
    auto& tensor = made.results.variants[0].parameters[0].tensor;
    tensor = shifted(tensor, by);
    return made;
  };
  const std::string after = "v: afterwards, ";
  // Of norm 5: relative limits 4.2e-5 and 8.5e-6. The figures move by sqrt(1/2) of the shift.
  EXPECT_EQ(failures(shift(trained(false), 5 * 4.0e-5), Dtype::kFloat32), Names{});
  EXPECT_EQ(failures(shift(trained(false), 5 * 4.4e-5), Dtype::kFloat32),
            Names{after + "parameters together"});
  EXPECT_EQ(failures(shift(trained(false), 5 * 6.1e-5), Dtype::kFloat32),
            (Names{after + "parameters together", after + "parameters' figures"}));
  EXPECT_EQ(
      failures(shift(trained(false), 9e-4), Dtype::kFloat32),
      (Names{after + "parameters", after + "parameters together", after + "parameters' figures"}));
  EXPECT_EQ(failures(shift(trained(true), 5 * 8.8e-6), Dtype::kFloat32),
            Names{after + "parameters together"});
  // In float64 1e-10, and 6e-8 where the folder's values are rounded.
  EXPECT_EQ(failures(shift(trained(true), 5 * 1.3e-10)), Names{});
  EXPECT_EQ(failures(shift(trained(true), 5 * 1.5e-10)), Names{after + "parameters' figures"});
  EXPECT_EQ(failures(shift(trained(true), 5 * 0.7e-7)),
            (Names{after + "parameters", after + "parameters' figures"}));
}

TEST(GoldenTraining, AllowsTenTimesWhatAnotherFloat32RunDid) {
  const auto fails = [](const GoldenOtherRun& other, Dtype dtype, double by = 1.8e-4) {
    auto made = trained(true);
    made.golden.variants[0].other_run = other;
    auto& result = made.results.variants[0];
    result.loss[1] += by;
    result.ce[0] += by;
    result.aux[0] += by;
    result.grad_norm[0] += 2.0 * by;
    result.final_eval.loss += by;
    return failures(made, dtype);
  };
  const Names all = {"v: loss", "v: cross-entropy", "v: auxiliary loss", "v: gradient norm",
                     "v: afterwards, loss"};
  EXPECT_EQ(fails({}, Dtype::kFloat32), all);
  EXPECT_EQ(fails({.loss = {5.0, 4.0 + 1e-4}, .grad_norm = {2.0, 8.0}}, Dtype::kFloat32),
            Names{"v: gradient norm"});
  EXPECT_EQ(fails({.loss = {5.0, 4.0}, .grad_norm = {2.0 + 2e-4, 8.0}}, Dtype::kFloat32),
            (Names{"v: loss", "v: cross-entropy", "v: auxiliary loss", "v: afterwards, loss"}));
  EXPECT_EQ(fails({.loss = {}, .grad_norm = {}, .aux_error = 1e-4}, Dtype::kFloat32),
            (Names{"v: loss", "v: cross-entropy", "v: gradient norm", "v: afterwards, loss"}));
  EXPECT_EQ(fails({.loss = {6.0, 9.0}, .grad_norm = {3.0, 3.0}, .aux_error = 1}, Dtype::kFloat64),
            all);
  // But no more than ten times the limits without it.
  EXPECT_EQ(fails({.loss = {5.0, 4.0 + 1e-4}, .grad_norm = {2.0, 8.0}}, Dtype::kFloat32, 2.1e-4),
            all);
  const std::string refused =
      "v: another float32 run must be within 0.0002 of the float64 run, got ";
  EXPECT_EQ(message_of<ValueError>(
                [&] { fails({.loss = {}, .grad_norm = {}, .aux_error = 1}, Dtype::kFloat32); }),
            refused + "1");
  EXPECT_EQ(message_of<ValueError>([&] {
              fails({.loss = {6.0, 4.0}, .grad_norm = {}}, Dtype::kFloat32);
            }),
            refused + "1");
}

}  // namespace
}  // namespace moegrad::tools::golden_checks_test
