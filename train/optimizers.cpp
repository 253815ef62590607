// SPDX-License-Identifier: Apache-2.0
#include "train/optimizers.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <variant>

#include "framework/runtime/error.h"
#include "framework/runtime/program.h"
#include "models/matrix_parameters.h"
#include "optim/adafactor.h"
#include "optim/adagrad.h"
#include "optim/adam.h"
#include "optim/adamw.h"
#include "optim/lion.h"
#include "optim/muon.h"
#include "optim/rmsprop.h"
#include "optim/sgd.h"
#include "train/make_muon.h"
#include "train/train_step.h"

namespace moegrad::training {
namespace {

using Made = std::unique_ptr<optim::Optimizer>;
using optim::ParamGroup;

template <class Optimizer>
Made make_with(const nn::Module& model, const ParamGroup& settings,
               const typename Optimizer::Config& config) {
  auto groups =
      decay_matrices(model.named_parameters(), settings.lr.value(), settings.weight_decay.value());
  for (auto& group : groups) {
    auto whole = settings;
    whole.parameters = std::move(group.parameters);
    whole.weight_decay = group.weight_decay;
    group = std::move(whole);
  }
  return std::make_unique<Optimizer>(std::move(groups), config);
}

template <class Optimizer>
Made make(const nn::Module& model, const ParamGroup& settings) {
  return make_with<Optimizer>(model, settings, {});
}

Made make_adafactor(const nn::Module& model, const ParamGroup& settings) {
  return make_with<optim::Adafactor>(model, settings,
                                     {.matrices = models::stacked_matrices(model)});
}

Made make_whole_muon(const nn::Module& model, const ParamGroup& settings) {
  return make_muon(model, {.lr = settings.lr.value(),
                           .momentum = settings.momentum.value(),
                           .nesterov = settings.nesterov.value(),
                           .eps = settings.eps.value(),
                           .weight_decay = settings.weight_decay.value(),
                           .adjust = settings.adjust.value(),
                           .adamw = {.lr = settings.lr.value(),
                                     .beta1 = settings.beta1.value(),
                                     .beta2 = settings.beta2.value(),
                                     .weight_decay = settings.weight_decay.value(),
                                     .amsgrad = settings.amsgrad.value()}});
}

constexpr std::array<std::pair<std::string_view, std::optional<bool>>, 2> kTruths = {
    {{"true", true}, {"false", false}}};
constexpr std::array<std::pair<std::string_view, std::optional<optim::MuonAdjust>>, 2> kAdjusts = {
    {{"original", optim::MuonAdjust::kOriginal},
     {"match_rms_adamw", optim::MuonAdjust::kMatchRms}}};

std::vector<Option> own_options(ParamGroup& settings) {
  auto& [parameters, lr, weight_decay, beta1, beta2, eps, amsgrad, momentum, nesterov, alpha,
         centered, lr_decay, initial_accumulator_value, beta2_decay, min_rms, clip_threshold,
         adjust, group] = settings;
  constexpr Bounds<double> kFromZero = {0, 1e30}, kBelowOne = {0, 0.999999};
  std::vector<Option> all;
  const auto number = [&](const char* name, std::optional<double>& value, Bounds<double> bounds,
                          const char* what) {
    all.push_back(number_option(name, value, bounds, what));
  };
  const auto flag = [&](const char* name, std::optional<bool>& value, const char* what) {
    all.push_back(choice_option<std::optional<bool>>(name, value, kTruths, what));
  };
  number("beta1", beta1, kBelowOne, "decay of the mean of gradients");
  number("beta2", beta2, kBelowOne, "decay of the mean of squares; Lion's of its momentum");
  number("eps", eps, kFromZero, "added to the divisor, or its least value");
  flag("amsgrad", amsgrad, "divide by the largest mean of squares so far");
  number("momentum", momentum, kFromZero, "decay of the sum or mean of updates");
  flag("nesterov", nesterov, "Nesterov's momentum");
  number("alpha", alpha, kBelowOne, "decay of the mean of squares");
  flag("centered", centered, "divide by the variance, not by the mean of squares");
  number("lr-decay", lr_decay, kFromZero, "divides the learning rate by 1 + that per step");
  number("initial-accumulator-value", initial_accumulator_value, kFromZero, "of sums of squares");
  number("beta2-decay", beta2_decay, {-1e30, 0}, "exponent of the step in the mean of squares");
  number("min-rms", min_rms, kFromZero, "least size of a weight that scales its update");
  number("clip-threshold", clip_threshold, {1, 1e30}, "largest root mean square of an update");
  all.push_back(choice_option<std::optional<optim::MuonAdjust>>(
      "adjust", adjust, kAdjusts, "size of an update; match_rms_adamw: as AdamW's"));
  return all;
}

bool is_set(const Option& option) { return !std::holds_alternative<std::monostate>(option.get()); }

// For each option of the settings the names of the optimizers that have it.
const std::vector<std::string>& owners() {
  static const auto all = [] {
    std::vector<std::vector<std::string_view>> names;
    for (const auto& kind : optimizers()) {
      auto own = kind.settings;
      const auto options = own_options(own);
      names.resize(options.size());
      for (std::size_t i = 0; i < options.size(); ++i) {
        if (is_set(options[i])) names[i].push_back(kind.name);
      }
    }
    std::vector<std::string> texts;
    for (const auto& some : names) texts.push_back(listed(some));
    return texts;
  }();
  return all;
}

}  // namespace

const std::vector<OptimizerKind>& optimizers() {
  static const ParamGroup adam = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .amsgrad = false};
  static const std::vector<OptimizerKind> all = {
      {"adamw", "AdamW", adam, make<optim::AdamW>},
      {"adam", "Adam", adam, make<optim::Adam>},
      {"sgd", "SGD", {.momentum = 0.0, .nesterov = false}, make<optim::SGD>},
      {"rmsprop",
       "RMSprop",
       {.eps = 1e-8, .momentum = 0.0, .alpha = 0.99, .centered = false},
       make<optim::RMSprop>},
      {"adagrad",
       "Adagrad",
       {.eps = 1e-10, .lr_decay = 0.0, .initial_accumulator_value = 0.0},
       make<optim::Adagrad>},
      {"lion", "Lion", {.beta1 = 0.9, .beta2 = 0.99}, make<optim::Lion>},
      {"adafactor",
       "Adafactor",
       {.eps = 0.0, .beta2_decay = -0.8, .min_rms = 1e-3, .clip_threshold = 1.0},
       make_adafactor},
      {"muon",
       "Muon",
       {.beta1 = 0.9,
        .beta2 = 0.95,
        .eps = 1e-7,
        .amsgrad = false,
        .momentum = 0.95,
        .nesterov = true,
        .adjust = optim::MuonAdjust::kOriginal},
       make_whole_muon}};
  return all;
}

const OptimizerKind& optimizer_named(std::string_view name) {
  std::vector<std::string_view> names;
  for (const auto& kind : optimizers()) {
    if (kind.name == name) return kind;
    names.push_back(kind.name);
  }
  throw ValueError("--optimizer: must be " + listed(names) + ", got '" + std::string(name) + "'");
}

std::vector<Option> setting_options(ParamGroup& settings) {
  auto all = own_options(settings);
  for (std::size_t i = 0; i < all.size(); ++i) all[i].description += "; for " + owners()[i];
  return all;
}

ParamGroup all_settings(const TrainConfig::Optim& config) {
  auto given = config.settings, all = optimizer_named(config.optimizer).settings;
  const auto from = own_options(given), to = own_options(all);
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (is_set(from[i])) to[i].set(from[i].get());
  }
  return all;
}

void check_settings(const TrainConfig::Optim& config) {
  auto given = config.settings, own = optimizer_named(config.optimizer).settings;
  const auto options = own_options(given), known = own_options(own);
  for (std::size_t i = 0; i < options.size(); ++i) {
    check<UsageError>(!is_set(options[i]) || is_set(known[i]), options[i].label(),
                      ": must be given with --optimizer ", owners()[i], ", got ", config.optimizer);
  }
  const auto all = all_settings(config);
  check<UsageError>(config.optimizer != "sgd" || !*all.nesterov || *all.momentum > 0,
                    "--nesterov: needs a --momentum above 0, got 0");
}

Made make_optimizer(const nn::Module& model, const TrainConfig::Optim& config) {
  auto settings = all_settings(config);
  settings.lr = config.lr;
  settings.weight_decay = config.weight_decay;
  return optimizer_named(config.optimizer).make(model, settings);
}

}  // namespace moegrad::training
