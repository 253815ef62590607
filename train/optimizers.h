// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nn/module.h"
#include "optim/optimizer.h"
#include "optim/param_group.h"
#include "train/config/option.h"
#include "train/config/train_config.h"

namespace moegrad::training {

/// An optimizer that a run may have.
struct OptimizerKind {
  std::string name;   // in options
  std::string title;  // of its class
  /// The settings that it has besides lr and weight_decay, as they are unless given.
  optim::ParamGroup settings;
  /// Makes it for a model's parameters, with these settings, an lr, and a weight decay for
  /// matrices.
  std::unique_ptr<optim::Optimizer> (*make)(const nn::Module& model,
                                            const optim::ParamGroup& settings);
};

/// All of them, in the order in which --help lists them.
const std::vector<OptimizerKind>& optimizers();
/// ValueError `--optimizer: must be ..., got <name>` if there is none of this name.
const OptimizerKind& optimizer_named(std::string_view name);

/// An option for each member of `settings` but lr and weight_decay.
std::vector<Option> setting_options(optim::ParamGroup& settings);

/// The settings that are given, and for the others of the optimizer what they are unless given.
optim::ParamGroup all_settings(const TrainConfig::Optim& config);
/// UsageError for a setting that the optimizer does not have, and for SGD's nesterov without a
/// momentum.
void check_settings(const TrainConfig::Optim& config);

/// The optimizer of a run. Make it after fully_shard. Muon's AdamW has the same lr as the matrices.
std::unique_ptr<optim::Optimizer> make_optimizer(const nn::Module& model,
                                                 const TrainConfig::Optim& config);

}  // namespace moegrad::training
