// SPDX-License-Identifier: Apache-2.0
#include "optim/param_group.h"

#include <limits>
#include <memory>
#include <type_traits>
#include <vector>

#include "framework/runtime/error.h"
#include "optim/adafactor.h"
#include "optim/adagrad.h"
#include "optim/adam.h"
#include "optim/adamw.h"
#include "optim/lion.h"
#include "optim/muon.h"
#include "optim/rmsprop.h"
#include "optim/sgd.h"
#include "tests/testing.h"

namespace moegrad::optim::param_group_test {
namespace {

using namespace test;

/// Two steps with the same gradients of the same parameter, in a group of its own settings and
/// alone with the same settings from the configuration.
template <class Optimizer>
void expect_as_configured(const ParamGroup& settings, const typename Optimizer::Config& config) {
  const Tensor own = randn({3, 4}), alone = randn({3, 4}), other = randn({2, 2}, 2);
  ParamGroup group = settings;
  group.parameters = {{"own", own}};
  Optimizer grouped({{.parameters = {{"other", other}}}, group}, {});
  Optimizer configured({{"alone", alone}}, config);
  for (std::uint64_t step = 0; step < 2; ++step) {
    other.set_grad(randn({2, 2}, 30 + step));
    own.set_grad(randn({3, 4}, 40 + step));
    alone.set_grad(randn({3, 4}, 40 + step));
    grouped.step();
    configured.step();
  }
  EXPECT_TRUE(bitwise_equal(own, alone));
  EXPECT_FALSE(bitwise_equal(own, randn({3, 4})));
}

TEST(ParamGroup, HasSettingsOfItsOwnInEveryOptimizer) {
  expect_as_configured<AdamW>(
      {.lr = 0.1, .weight_decay = 0.2, .beta1 = 0.5, .beta2 = 0.25, .eps = 0.1, .amsgrad = true},
      {.lr = 0.1, .beta1 = 0.5, .beta2 = 0.25, .eps = 0.1, .weight_decay = 0.2, .amsgrad = true});
  expect_as_configured<Adam>({.lr = 0.1, .weight_decay = 0.2, .beta1 = 0.5, .beta2 = 0.25},
                             {.lr = 0.1, .beta1 = 0.5, .beta2 = 0.25, .weight_decay = 0.2});
  expect_as_configured<SGD>({.lr = 0.1, .weight_decay = 0.2, .momentum = 0.5, .nesterov = true},
                            {.lr = 0.1, .momentum = 0.5, .weight_decay = 0.2, .nesterov = true});
  expect_as_configured<RMSprop>({.lr = 0.1,
                                 .weight_decay = 0.2,
                                 .eps = 0.1,
                                 .momentum = 0.5,
                                 .alpha = 0.75,
                                 .centered = true},
                                {.lr = 0.1,
                                 .alpha = 0.75,
                                 .eps = 0.1,
                                 .weight_decay = 0.2,
                                 .momentum = 0.5,
                                 .centered = true});
  expect_as_configured<Adagrad>({.lr = 0.1,
                                 .weight_decay = 0.2,
                                 .eps = 0.1,
                                 .lr_decay = 0.5,
                                 .initial_accumulator_value = 0.25},
                                {.lr = 0.1,
                                 .lr_decay = 0.5,
                                 .weight_decay = 0.2,
                                 .initial_accumulator_value = 0.25,
                                 .eps = 0.1});
  expect_as_configured<Lion>({.lr = 0.1, .weight_decay = 0.2, .beta1 = 0.5, .beta2 = 0.25},
                             {.lr = 0.1, .beta1 = 0.5, .beta2 = 0.25, .weight_decay = 0.2});
  expect_as_configured<Adafactor>({.lr = 0.1,
                                   .weight_decay = 0.2,
                                   .eps = 0.1,
                                   .beta2_decay = -0.5,
                                   .min_rms = 2.0,
                                   .clip_threshold = 1.25},
                                  {.lr = 0.1,
                                   .beta2_decay = -0.5,
                                   .eps = 0.1,
                                   .min_rms = 2.0,
                                   .clip_threshold = 1.25,
                                   .weight_decay = 0.2});
  expect_as_configured<Muon>({.lr = 0.1,
                              .weight_decay = 0.2,
                              .eps = 1.0,
                              .momentum = 0.5,
                              .nesterov = false,
                              .adjust = MuonAdjust::kMatchRms},
                             {.lr = 0.1,
                              .momentum = 0.5,
                              .nesterov = false,
                              .eps = 1.0,
                              .weight_decay = 0.2,
                              .adjust = MuonAdjust::kMatchRms});
}

/// That each of the settings alone changes the step.
template <class Optimizer>
void expect_each_counts(const std::vector<ParamGroup>& settings) {
  const auto after = [](ParamGroup group) {
    const Tensor p = randn({3, 4});
    group.parameters = {{"p", p}};
    Optimizer optimizer({group}, {});
    for (std::uint64_t step = 0; step < 2; ++step) {
      p.set_grad(randn({3, 4}, 40 + step));
      optimizer.step();
    }
    return p;
  };
  const Tensor usual = after({});
  for (std::size_t i = 0; i < settings.size(); ++i) {
    EXPECT_FALSE(bitwise_equal(after(settings[i]), usual)) << "setting " << i;
  }
}

TEST(ParamGroup, EachSettingOfAMatrixOptimizerChangesItsSteps) {
  expect_each_counts<Adafactor>({{.lr = 1e-3},
                                 {.weight_decay = 0.2},
                                 {.eps = 2.0},
                                 {.beta2_decay = -0.5},
                                 {.min_rms = 2.0},
                                 {.clip_threshold = 1.25}});
  expect_each_counts<Muon>({{.lr = 0.1},
                            {.weight_decay = 0.2},
                            {.eps = 10.0},
                            {.momentum = 0.5},
                            {.nesterov = false},
                            {.adjust = MuonAdjust::kMatchRms}});
}

TEST(ParamGroup, WithoutDecayNoWeightEntersTheGradient) {
  const auto stays = [](auto make) {
    const Tensor p = Tensor::full({3}, std::numeric_limits<double>::infinity(), Dtype::kFloat64);
    const auto optimizer = make(NamedTensors{{"p", p}});
    p.set_grad(Tensor::ones({3}, Dtype::kFloat64));
    optimizer->step();
    for (const auto value : p.data<double>()) {
      EXPECT_EQ(value, std::numeric_limits<double>::infinity());
    }
  };
  const auto made = []<class Optimizer>(std::type_identity<Optimizer>) {
    return [](const NamedTensors& parameters) {
      return std::make_unique<Optimizer>(parameters,
                                         typename Optimizer::Config{.weight_decay = 0.0});
    };
  };
  stays(made(std::type_identity<SGD>()));
  stays(made(std::type_identity<Adam>()));
  stays(made(std::type_identity<AdamW>()));
  stays(made(std::type_identity<RMSprop>()));
  stays(made(std::type_identity<Adagrad>()));
}

TEST(ParamGroup, MayNotGiveWhatTheOptimizerDoesNotHave) {
  const Tensor p = randn({2});
  const auto refused = [&](ParamGroup group) {
    group.parameters = {{"p", p}};
    return message_of<ValueError>([&] { SGD({group}, SGD::Config()); });
  };
  EXPECT_EQ(refused({.beta1 = 0.5}), "SGD: a group must give settings of SGD alone, got beta1");
  EXPECT_EQ(refused({.amsgrad = false}),
            "SGD: a group must give settings of SGD alone, got amsgrad");
}

TEST(ParamGroup, HasSettingsWithinTheirRanges) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const Tensor p = randn({2});
  const auto refused = [&]<class Optimizer>(std::type_identity<Optimizer>, ParamGroup group) {
    group.parameters = {{"p", p}};
    return message_of<ValueError>([&] { Optimizer({group}, typename Optimizer::Config()); });
  };
  EXPECT_EQ(refused(std::type_identity<Adam>(), {.beta1 = 1.0}),
            "Adam: beta1 must be in [0, 1), got 1");
  EXPECT_EQ(refused(std::type_identity<AdamW>(), {.beta2 = kNan}),
            "AdamW: beta2 must be in [0, 1), got nan");
  EXPECT_EQ(refused(std::type_identity<Adam>(), {.eps = -1.0}),
            "Adam: eps must be finite and >= 0, got -1");
  EXPECT_EQ(refused(std::type_identity<Lion>(), {.beta2 = -0.5}),
            "Lion: beta2 must be in [0, 1), got -0.5");
  EXPECT_EQ(refused(std::type_identity<RMSprop>(), {.alpha = 1.5}),
            "RMSprop: alpha must be in [0, 1), got 1.5");
  EXPECT_EQ(refused(std::type_identity<RMSprop>(), {.momentum = -0.5}),
            "RMSprop: momentum must be finite and >= 0, got -0.5");
  EXPECT_EQ(refused(std::type_identity<Adagrad>(), {.lr_decay = -0.5}),
            "Adagrad: lr_decay must be finite and >= 0, got -0.5");
  EXPECT_EQ(refused(std::type_identity<Adagrad>(), {.initial_accumulator_value = -0.5}),
            "Adagrad: initial_accumulator_value must be finite and >= 0, got -0.5");
  EXPECT_EQ(refused(std::type_identity<SGD>(), {.nesterov = true}),
            "SGD: nesterov needs momentum > 0, got 0");
  EXPECT_EQ(refused(std::type_identity<Lion>(), {.lr = -0.5}),
            "optimizer: lr must be finite and >= 0, got -0.5");
  EXPECT_EQ(refused(std::type_identity<Lion>(), {.weight_decay = -0.5}),
            "optimizer: weight_decay must be finite and >= 0, got -0.5");
}

// As docs/optimizers.md writes it.
TEST(ParamGroup, OneGroupAloneIsWrittenInBraces) {
  const NamedTensors matrices = {{"v", randn({2, 2})}, {"w", randn({3, 2}, 2)}};
  const AdamW alone({{.parameters = matrices}}, {.lr = 0.5});
  const AdamW with_rate({{.parameters = {{"w", randn({2})}}, .lr = 0.25}}, {.lr = 0.5});
  const AdamW typed({ParamGroup{.parameters = {{"w", randn({2})}}}}, {.lr = 0.5});
  ASSERT_EQ(alone.groups().size(), 1U);
  EXPECT_EQ(alone.groups()[0].parameters.size(), 2U);
  EXPECT_EQ(alone.groups()[0].lr, 0.5);
  EXPECT_EQ(with_rate.groups().at(0).lr, 0.25);
  EXPECT_EQ(typed.groups().size(), 1U);
}

TEST(ParamGroup, DecaysByDefaultAsInPyTorch) {
  const NamedTensors w = {{"w", test::variable({2})}};
  EXPECT_EQ(Adam(w, Adam::Config{}).groups()[0].weight_decay, 0.0);
  EXPECT_EQ(AdamW(w, AdamW::Config{}).groups()[0].weight_decay, 0.01);
}

TEST(ParamGroup, SettingsAreFinite) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const NamedTensors w = {{"w", test::variable({2})}};
  EXPECT_EQ(message_of<ValueError>([&] { SGD(w, SGD::Config{.momentum = kInfinity}); }),
            "SGD: momentum must be finite and >= 0, got inf");
  EXPECT_THROW(RMSprop(w, RMSprop::Config{.eps = kInfinity}), ValueError);
  EXPECT_THROW(Adagrad(w, Adagrad::Config{.lr_decay = kInfinity}), ValueError);
  EXPECT_THROW(Adafactor(w, Adafactor::Config{.beta2_decay = -kInfinity}), ValueError);
  EXPECT_THROW(AdamW(w, AdamW::Config{.weight_decay = kInfinity}), ValueError);
}

}  // namespace
}  // namespace moegrad::optim::param_group_test
