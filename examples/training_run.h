// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "examples/train_options.h"
#include "examples/training_data.h"
#include "framework/io/checkpoint_writer.h"
#include "fsdp/policy.h"

namespace moegrad::examples {

/// What a run asks and tells while it goes on.
struct TrainingEvents {
  /// Asked after each step; true ends the run there, with a checkpoint.
  std::function<bool()> stop_requested = [] { return false; };
  /// CheckpointOptions::observe, with the rank that it concerns.
  std::function<void(int rank, CheckpointPoint)> at_checkpoint_point = {};
};

/// How the layers are sharded; the root as shard_model says.
fsdp::Policy policy_of(const TrainOptions& options);

/// Trains as `options` say, with ranks of its own, and prints to standard output. Returns the exit
/// code: 1 if the last checkpoint could not be saved, else 0.
int run_training(const TrainOptions& options, const TrainingData& data,
                 const TrainingEvents& events);

}  // namespace moegrad::examples
