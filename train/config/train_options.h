// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "train/config/option.h"
#include "train/config/train_config.h"

namespace moegrad::training {

/// The names of these dtypes in options.
inline constexpr std::array<std::pair<std::string_view, Dtype>, 3> kDtypes = {
    {{"fp32", Dtype::kFloat32}, {"fp64", Dtype::kFloat64}, {"bf16", Dtype::kBFloat16}}};

/// An option for every member of `config`, which must outlive them. A member that is added to a
/// part of TrainConfig does not compile until it is named there.
std::vector<Option> train_options(TrainConfig& config);

/// Every option by its name, with underscores, and its value as text, in full. A default that
/// depends on other options is recorded as the value that it has.
std::map<std::string, std::string> record_options(const TrainConfig& config);

/// The options of record_options() that must be the same when a run is resumed
/// (AtResume::kCompared), without those of former_options() where all are as formerly.
std::map<std::string, std::string> compared_options(const TrainConfig& config);

/// What compared_options() leave out where all are so: the options that earlier versions lacked, by
/// which optimizer first, with the values that runs had (Option::formerly).
std::vector<std::pair<std::string, std::string>> former_options();

/// The configuration for people: a line `name value` for each of the model's sizes and each option
/// that is set, with the values that will be used.
std::string describe(const TrainConfig& config);

/// Reads the command line of the training program and checks the result (TrainConfig::validate).
/// If the program should end, prints help, the options (--print-config) or what is wrong, and
/// returns the exit code.
std::optional<int> parse_train_config(int argc, const char* const* argv, TrainConfig& config);

}  // namespace moegrad::training
