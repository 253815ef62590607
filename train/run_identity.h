// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "train/config/train_config.h"
#include "train/data/training_data.h"

namespace moegrad::training {

/// What must not change when a run is resumed, as text: the compared options by their names, and
/// the contents of what the run reads.
std::map<std::string, std::string> describe_run(const TrainConfig& config,
                                                const TrainingData& data);

}  // namespace moegrad::training
