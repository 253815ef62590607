// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "train/config/train_config.h"

namespace moegrad::training {

/// What a run would hold and compute, without giving the model any memory: every parameter's name
/// and shape (layers that are alike once), counts, bytes per rank under fully_shard, FLOPs per
/// token.
std::string dry_run_report(const TrainConfig& options);

}  // namespace moegrad::training
