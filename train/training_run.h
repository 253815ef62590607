// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>

#include "framework/distributed/threads/link_model.h"
#include "framework/io/checkpoint_writer.h"
#include "train/config/train_config.h"
#include "train/data/training_data.h"

namespace moegrad::training {

/// What run_training() returns for a run that ended before its last step because it was asked to.
inline constexpr int kRunStopped = -1;

/// What a run asks and tells while it goes on.
struct TrainingEvents {
  /// Asked on rank 0 after each step, and between the batches of an evaluation and the bytes of a
  /// sample; true ends the run there, with a checkpoint of the steps done.
  std::function<bool()> stop_requested = [] { return false; };
  /// CheckpointOptions::observe, with the rank that it concerns.
  std::function<void(int rank, CheckpointPoint)> at_checkpoint_point = {};
  /// How long a window is, at least, over which the ranks are compared (Note [Slow ranks]).
  std::chrono::milliseconds slow_rank_window{5'000};
  /// LaunchOptions::link.
  LinkModel link = {};
};

/// Trains as `options` say, with ranks of its own, and prints to standard output. Returns the exit
/// code: 1 if a checkpoint or a part of the logs could not be written, else kRunStopped or 0.
/// Keeps other runs out of the folder of its checkpoints.
int run_training(const TrainConfig& options, const TrainingData& data,
                 const TrainingEvents& events);

}  // namespace moegrad::training
