// SPDX-License-Identifier: Apache-2.0
#include "train/optimizers.h"

#include <map>
#include <string>
#include <variant>

#include "framework/runtime/program.h"
#include "models/causal_lm/model.h"
#include "optim/adafactor.h"
#include "optim/adagrad.h"
#include "optim/lion.h"
#include "optim/muon.h"
#include "optim/rmsprop.h"
#include "optim/sgd.h"
#include "tests/testing.h"
#include "train/config/train_config.h"

namespace moegrad::training::optimizers_test {
namespace {

using test::message_of;
using Values = std::map<std::string, OptionValue>;

/// The settings that are given, by name.
Values given(optim::ParamGroup settings) {
  Values values;
  for (const auto& option : setting_options(settings)) {
    const auto value = option.get();
    if (!std::holds_alternative<std::monostate>(value)) values[option.name] = value;
  }
  return values;
}

TEST(Optimizers, HaveTheSettingsThatTheTableSaysAndNoOthers) {
  const models::CausalLM model(models::CausalLMConfig::preset("tiny"), 1);
  for (const auto& kind : optimizers()) {
    TrainConfig::Optim config;
    config.optimizer = kind.name;
    const auto optimizer = make_optimizer(model, config);
    Values all;
    for (const auto& group : optimizer->groups()) {
      EXPECT_EQ(group.lr, 4e-3);
      all.merge(given(group));  // of Muon's eps that of the matrices, which come first
    }
    EXPECT_EQ(all, given(kind.settings)) << kind.name;
  }
}

/// As the class has them unless given.
template <class Optimizer>
Values own_of() {
  const Tensor weight = Tensor::zeros({1, 1}).set_requires_grad(true);
  const Optimizer optimizer(NamedTensors{{"weight", weight}}, {});
  return given(optimizer.groups()[0]);
}

TEST(Optimizers, HaveTheDefaultsOfTheirClasses) {
  const auto of = [](const char* name) { return given(optimizer_named(name).settings); };
  EXPECT_EQ(of("sgd"), own_of<optim::SGD>());
  EXPECT_EQ(of("rmsprop"), own_of<optim::RMSprop>());
  EXPECT_EQ(of("adagrad"), own_of<optim::Adagrad>());
  EXPECT_EQ(of("lion"), own_of<optim::Lion>());
  EXPECT_EQ(of("adafactor"), own_of<optim::Adafactor>());
  for (const auto& [name, value] : own_of<optim::Muon>()) EXPECT_EQ(of("muon")[name], value);
}

TEST(Optimizers, DecayMatricesAlone) {
  const models::CausalLM model(models::CausalLMConfig::preset("tiny"), 1);
  for (const auto& kind : optimizers()) {
    TrainConfig::Optim config;
    config.optimizer = kind.name;
    std::size_t parameters = 0;
    const auto optimizer = make_optimizer(model, config);
    for (const auto& group : optimizer->groups()) {
      for (const auto& [name, parameter] : group.parameters) {
        EXPECT_EQ(group.weight_decay, parameter.ndim() > 1 ? 0.1 : 0) << kind.name << ' ' << name;
        ++parameters;
      }
    }
    EXPECT_EQ(parameters, model.named_parameters().size()) << kind.name;
  }
}

TEST(Optimizers, OfAnotherNameAreRefused) {
  EXPECT_EQ(message_of<ValueError>([] { optimizer_named("adamax"); }),
            "--optimizer: must be adamw, adam, sgd, rmsprop, adagrad, lion, adafactor or muon, got "
            "'adamax'");
}

TEST(Optimizers, RefuseTheSettingsOfOthers) {
  TrainConfig config;
  config.optim.settings.momentum = 0.0;
  EXPECT_EQ(message_of<UsageError>([&] { config.validate(); }),
            "--momentum: must be given with --optimizer sgd, rmsprop or muon, got adamw");
  config.optim.optimizer = "sgd";
  EXPECT_NO_THROW(config.validate());
  config.optim.settings.nesterov = true;
  EXPECT_EQ(message_of<UsageError>([&] { config.validate(); }),
            "--nesterov: needs a --momentum above 0, got 0");
}

}  // namespace
}  // namespace moegrad::training::optimizers_test
