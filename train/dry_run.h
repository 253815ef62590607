// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "train/config/train_config.h"

namespace moegrad::training {

/// What a run would store and compute, without allocating memory for the model: every parameter's
/// name and shape (equal layers appear once), counts, bytes per rank under fully_shard, FLOPs per
/// token.
std::string dry_run_report(const TrainConfig& options);

}  // namespace moegrad::training
