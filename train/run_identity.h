// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "framework/distributed/process_group.h"
#include "train/config/train_config.h"
#include "train/data/training_data.h"

namespace moegrad::training {

/// Where describe_run() says which weights the run began from, and what it says of those that were
/// not read.
inline constexpr const char* kInitialWeights = "initial_weights";
inline constexpr const char* kRandomWeights = "random ones";

/// What must not change when a run is resumed, as text: the compared options by their names, and
/// the contents of what the run reads, of --hf-model the configuration and a checksum of the
/// weights.
std::map<std::string, std::string> describe_run(const TrainConfig& config,
                                                const TrainingData& data);

/// Whether a run with `config`, but with `steps` as a checkpoint records it, has had the
/// same learning rates in its first `step` steps: where the rate is constant or not yet decays
/// (wsd), not with a cosine. False if `config` has fewer steps than `step`.
bool same_first_steps(const TrainConfig::Optim& config, const std::string& steps,
                      std::int64_t step);

/// All that a run depends on, as text: every option, and the contents of what the run reads.
std::map<std::string, std::string> record_run(const TrainConfig& config, const TrainingData& data);

/// Checks that all ranks of `group` train the same, by the records of their runs, which have the
/// same names. Ranks that are processes have options from environment and files of their own.
/// Collective. ValueError that names the first difference.
void check_same_run(const std::shared_ptr<ProcessGroup>& group,
                    const std::map<std::string, std::string>& record);

}  // namespace moegrad::training
