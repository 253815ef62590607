// SPDX-License-Identifier: Apache-2.0
#pragma once

// Every optimizer, in the settings that its tests run it with.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "optim/adafactor.h"
#include "optim/adagrad.h"
#include "optim/adam.h"
#include "optim/adamw.h"
#include "optim/lion.h"
#include "optim/muon.h"
#include "optim/rmsprop.h"
#include "optim/sgd.h"

namespace moegrad::test {

struct NamedOptimizer {
  std::string name;
  std::function<std::unique_ptr<optim::Optimizer>(NamedTensors)> make;
  /// Two groups with settings of their own.
  std::function<std::unique_ptr<optim::Optimizer>(std::vector<optim::ParamGroup>)> make_of_groups;
};

template <class Optimizer>
NamedOptimizer named_optimizer(std::string name, typename Optimizer::Config config) {
  return {.name = std::move(name),
          .make =
              [config](NamedTensors parameters) {
                return std::make_unique<Optimizer>(std::move(parameters), config);
              },
          .make_of_groups =
              [config](std::vector<optim::ParamGroup> groups) {
                return std::make_unique<Optimizer>(std::move(groups), config);
              }};
}

/// Muon for matrices, its AdamW for other parameters.
inline NamedOptimizer named_muon(std::string name, const optim::Muon::Config& config) {
  auto named = named_optimizer<optim::Muon>(std::move(name), config);
  named.make = [config](const NamedTensors& parameters) {
    std::vector<optim::ParamGroup> groups(1);
    auto own = config;
    for (const auto& parameter : parameters) {
      const bool is_matrix = parameter.tensor.ndim() == 2;
      if (!is_matrix && groups.size() == 1) {
        groups.push_back({.name = "others"});
        own.adamw_groups = {"others"};
      }
      groups[is_matrix ? 0 : 1].parameters.push_back(parameter);
    }
    return std::make_unique<optim::Muon>(groups, own);
  };
  return named;
}

/// `skip` is the option skip_nonfinite_grad.
inline std::vector<NamedOptimizer> every_optimizer(bool skip = false) {
  using namespace optim;
  return {
      named_optimizer<AdamW>(
          "AdamW", {.lr = 1e-2, .beta2 = 0.95, .weight_decay = 0.1, .skip_nonfinite_grad = skip}),
      named_optimizer<AdamW>(
          "AdamW(amsgrad)",
          {.lr = 1e-2, .weight_decay = 0.1, .amsgrad = true, .skip_nonfinite_grad = skip}),
      named_optimizer<Adam>("Adam", {.lr = 1e-2, .weight_decay = 0.1, .skip_nonfinite_grad = skip}),
      named_optimizer<Adam>(
          "Adam(amsgrad)",
          {.lr = 1e-2, .beta2 = 0.9, .amsgrad = true, .skip_nonfinite_grad = skip}),
      named_optimizer<SGD>("SGD", {.lr = 1e-2,
                                   .momentum = 0.9,
                                   .weight_decay = 0.1,
                                   .nesterov = true,
                                   .skip_nonfinite_grad = skip}),
      named_optimizer<RMSprop>("RMSprop",
                               {.momentum = 0.5, .centered = true, .skip_nonfinite_grad = skip}),
      named_optimizer<Adagrad>("Adagrad",
                               {.lr_decay = 0.1, .weight_decay = 0.1, .skip_nonfinite_grad = skip}),
      named_optimizer<Lion>("Lion", {.lr = 1e-2, .weight_decay = 0.1, .skip_nonfinite_grad = skip}),
      named_optimizer<Adafactor>("Adafactor", {.weight_decay = 0.1, .skip_nonfinite_grad = skip}),
      named_muon("Muon", {.lr = 1e-2, .skip_nonfinite_grad = skip}),
      named_muon("Muon(match-RMS)", {.lr = 1e-2,
                                     .nesterov = false,
                                     .adjust = Muon::Adjust::kMatchRms,
                                     .skip_nonfinite_grad = skip}),
  };
}

}  // namespace moegrad::test
