// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>

#include "examples/train_options.h"
#include "examples/training_data.h"
#include "framework/distributed/link_model.h"
#include "framework/io/checkpoint_writer.h"

namespace moegrad::examples {

/// What a run asks and tells while it goes on.
struct TrainingEvents {
  /// Asked after each step; true ends the run there, with a checkpoint.
  std::function<bool()> stop_requested = [] { return false; };
  /// CheckpointOptions::observe, with the rank that it concerns.
  std::function<void(int rank, CheckpointPoint)> at_checkpoint_point = {};
  /// How long a window is, at least, over which the ranks are compared (Note [Slow ranks]).
  std::chrono::milliseconds slow_rank_window{5'000};
  /// LaunchOptions::link.
  LinkModel link = {};
};

/// Trains as `options` say, with ranks of its own, and prints to standard output. Returns the exit
/// code: 1 if the last checkpoint could not be saved, else 0.
int run_training(const TrainOptions& options, const TrainingData& data,
                 const TrainingEvents& events);

}  // namespace moegrad::examples
