// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "framework/runtime/arena.h"
#include "train/config/train_config.h"

namespace moegrad::training {

/// UsageError if what each rank holds during a run, without activations, is beyond the budget of
/// --memory-budget.
void check_memory_budget(const TrainConfig& options);

/// The three largest tags of what was in use, each with the options of `train` that shrink it.
std::string what_shrinks(const MemoryUse& live);

}  // namespace moegrad::training
