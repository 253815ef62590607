// SPDX-License-Identifier: Apache-2.0
#include "optim/adamw.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "framework/runtime/arena.h"
#include "framework/runtime/math/elementary.h"
#include "framework/runtime/rank_context.h"
#include "tests/source_dir.h"
#include "tests/testing.h"

namespace moegrad::optim::adamw_test {
namespace {

using namespace test;

void set_random_grad(const Tensor& parameter, std::uint64_t seed) {
  parameter.set_grad(randn(parameter.shape(), seed, parameter.dtype()));
}

TEST(AdamW, MatchesPythonReferenceValues) {
  std::ifstream file(test::source_dir() / "tests/optim/adamw_reference.json");
  const auto reference = nlohmann::json::parse(file);
  const auto start = reference["start"].get<std::vector<double>>();
  for (const auto& expected : reference["cases"]) {
    Tensor parameter = Tensor::from(start, {std::ssize(start)});
    const Tensor other = randn({2}, 3);  // has a gradient where the first one has none
    AdamW optimizer({{"p", parameter}, {"other", other}},
                    {.lr = expected["lr"],
                     .beta1 = expected["beta1"],
                     .beta2 = expected["beta2"],
                     .eps = expected["eps"],
                     .weight_decay = expected["weight_decay"]});
    for (std::size_t step = 0; step < reference["gradients"].size(); ++step) {
      const auto& gradient = reference["gradients"][step];
      optimizer.zero_grad();
      other.set_grad(randn({2}, 4));
      if (!gradient.is_null()) {
        parameter.set_grad(Tensor::from(gradient.get<std::vector<double>>(), parameter.shape()));
      }
      optimizer.step();
      const auto values = expected["parameters"][step].get<std::vector<double>>();
      EXPECT_TRUE(
          test::all_close(parameter, Tensor::from(values, parameter.shape()), 1e-13, 1e-15));
    }
    EXPECT_EQ(test::integers(optimizer.states()[0].steps).at(0), 10);
  }
}

TEST(AdamW, MatchesScalarFormulasOver100Steps) {
  const AdamW::Config config{
      .lr = 3e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
  Tensor parameter = randn({7, 3}, 5);
  const Tensor start = clone(parameter);
  AdamW optimizer({{"p", parameter}}, config);
  std::vector<double> expected(start.data<double>().begin(), start.data<double>().end());
  std::vector<double> m(expected.size()), v(expected.size());
  for (int t = 1; t <= 100; ++t) {
    const Tensor grad = randn({7, 3}, 100 + static_cast<std::uint64_t>(t));
    parameter.set_grad(grad);
    optimizer.step();
    const auto g = grad.data<double>();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      m[i] += (1 - config.beta1) * (g[i] - m[i]);
      v[i] += (1 - config.beta2) * (g[i] * g[i] - v[i]);
      const double m_hat = m[i] / (1 - std::pow(config.beta1, t));
      const double v_hat = v[i] / (1 - std::pow(config.beta2, t));
      expected[i] -= config.lr * config.weight_decay * expected[i];
      expected[i] -= config.lr * m_hat / (std::sqrt(v_hat) + config.eps);
    }
  }
  EXPECT_TRUE(test::all_close(parameter, Tensor::from(expected, parameter.shape()), 1e-12, 1e-13));
}

// The scalars of a step are computed in float64 and rounded once, all else is float32.
TEST(AdamW, Float32StepsHaveTheBitsOfTheirFormulas) {
  const AdamW::Config config{
      .lr = 0.3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.3};
  Tensor parameter = randn({31, 3}, 5, Dtype::kFloat32);
  const Tensor start = clone(parameter);
  AdamW optimizer({{"p", parameter}}, config);
  std::vector<float> expected(start.data<float>().begin(), start.data<float>().end());
  std::vector<float> m(expected.size()), v(expected.size());
  // 0.91, which is another number where lr, weight_decay and their product are rounded first.
  const auto decay = static_cast<float>(1.0 - config.lr * config.weight_decay);
  const auto beta1 = static_cast<float>(config.beta1), beta2 = static_cast<float>(config.beta2);
  const auto rest1 = static_cast<float>(1.0 - config.beta1);
  const auto rest2 = static_cast<float>(1.0 - config.beta2);
  const auto eps = static_cast<float>(config.eps);
  for (int t = 1; t <= 100; ++t) {
    const Tensor grad = randn({31, 3}, 100 + static_cast<std::uint64_t>(t), Dtype::kFloat32);
    parameter.set_grad(grad);
    optimizer.step();
    const auto step_size = static_cast<float>(config.lr / (1.0 - math::pow(config.beta1, t)));
    const auto root = static_cast<float>(std::sqrt(1.0 - math::pow(config.beta2, t)));
    const auto g = grad.data<float>();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      m[i] = m[i] * beta1 + g[i] * rest1;
      v[i] = v[i] * beta2 + g[i] * g[i] * rest2;
      const float denominator = std::sqrt(v[i]) / root + eps;
      expected[i] = expected[i] * decay - step_size * (m[i] / denominator);
    }
    ASSERT_TRUE(bitwise_equal(parameter, Tensor::from(expected, parameter.shape()))) << t;
  }
}

TEST(AdamW, UpdatesAShardAsItUpdatesTheWhole) {
  for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    constexpr std::int64_t kRows = 40'001, kCut = 1237;  // several pieces, odd cuts
    Tensor whole = randn({kRows}, 3, dtype);
    const auto part_of = [](const Tensor& tensor, std::int64_t begin, std::int64_t end) {
      return clone(Tensor::as_strided(tensor, {end - begin}, {1}, begin));
    };
    Tensor head = part_of(whole, 0, kCut), tail = part_of(whole, kCut, kRows);
    AdamW first({{"p", whole}}, {.lr = 1e-2});
    AdamW second({{"head", head}, {"tail", tail}}, {.lr = 1e-2});
    for (std::uint64_t step = 0; step < 3; ++step) {
      set_random_grad(whole, step);
      head.set_grad(part_of(whole.grad(), 0, kCut));
      tail.set_grad(part_of(whole.grad(), kCut, kRows));
      first.step();
      second.step();
    }
    EXPECT_TRUE(bitwise_equal(part_of(whole, 0, kCut), head));
    EXPECT_TRUE(bitwise_equal(part_of(whole, kCut, kRows), tail));
  }
}

TEST(AdamW, GivesTheSameBitsWithMoreThreads) {
  const auto train = [](int threads) {
    RankContext context({.threads = threads});
    const RankContextGuard guard(context);
    Tensor parameter = randn({100'003}, 3, Dtype::kFloat32);
    AdamW optimizer({{"p", parameter}}, {.lr = 1e-2});
    set_random_grad(parameter, 9);
    optimizer.step();
    return parameter;
  };
  EXPECT_TRUE(bitwise_equal(train(1), train(3)));
}

TEST(AdamW, KeepsItsStateUnderTheOptimizerTag) {
  RankContext context;
  const RankContextGuard guard(context);
  Tensor parameter = randn({10, 3}, 1, Dtype::kFloat32);
  parameter.set_requires_grad(true);
  EXPECT_EQ(context.arena()->live()[MemoryTag::kOptimizer], 0);
  const AdamW optimizer({{"p", parameter}}, {});
  EXPECT_EQ(context.arena()->live()[MemoryTag::kOptimizer], 2 * 30 * 4 + 8);
}

TEST(AdamW, GroupsHaveTheirOwnRatesAndSetLrSetsAll) {
  Tensor a = Tensor::ones({2}, Dtype::kFloat64), b = Tensor::ones({2}, Dtype::kFloat64);
  AdamW optimizer({ParamGroup{.parameters = {{"a", a}}, .lr = 0.1, .weight_decay = 0.5},
                   ParamGroup{.parameters = {{"b", b}}, .lr = 0.2, .weight_decay = 0.0}},
                  {});
  a.set_grad(Tensor::zeros({2}, Dtype::kFloat64));
  b.set_grad(Tensor::zeros({2}, Dtype::kFloat64));
  optimizer.step();
  EXPECT_EQ(a.data<double>()[0], 0.95);
  EXPECT_EQ(b.data<double>()[0], 1.0);
  optimizer.set_lr(0.0);
  EXPECT_EQ(optimizer.groups()[0].lr, 0.0);
  EXPECT_EQ(optimizer.groups()[1].lr, 0.0);
  optimizer.zero_grad();
  EXPECT_FALSE(a.grad().defined());
}

TEST(AdamW, ModifiesParametersInPlaceAndTellsTheTape) {
  Tensor parameter = variable({3});
  AdamW optimizer({{"p", parameter}}, {});
  const auto version = parameter.storage().version();
  set_random_grad(parameter, 1);
  optimizer.step();
  EXPECT_GT(parameter.storage().version(), version);
}

TEST(AdamW, RejectsWhatCannotBe) {
  const Tensor p = randn({2});
  const auto build = [&](AdamW::Config config) {
    return message_of<ValueError>([&] { AdamW({{"p", p}}, config); });
  };
  EXPECT_EQ(build({.lr = -1.0}), "optimizer: lr must be finite and >= 0, got -1");
  EXPECT_EQ(build({.weight_decay = -0.5}),
            "optimizer: weight_decay must be finite and >= 0, got -0.5");
  EXPECT_EQ(build({.beta1 = 1.0}), "AdamW: beta1 must be in [0, 1), got 1");
  EXPECT_EQ(build({.beta2 = -0.1}), "AdamW: beta2 must be in [0, 1), got -0.1");
  EXPECT_EQ(build({.eps = -1e-8}), "AdamW: eps must be finite and >= 0, got -1e-08");
  EXPECT_EQ(message_of<ValueError>([&] {
              AdamW({{"p", p}, {"q", p}}, AdamW::Config{});
            }),
            "optimizer: parameter 'q' is given twice");
  AdamW optimizer({{"p", p}}, {});
  EXPECT_EQ(message_of<ValueError>([&] { optimizer.set_lr(-2.0); }),
            "set_lr: lr must be finite and >= 0, got -2");
}

}  // namespace
}  // namespace moegrad::optim::adamw_test
