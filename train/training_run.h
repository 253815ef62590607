// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>

#include "framework/distributed/threads/link_model.h"
#include "framework/io/checkpoint_writer.h"
#include "train/config/train_config.h"
#include "train/data/training_data.h"

namespace moegrad::training {

/// What run_training() returns if the run was asked to end and did so before its last step.
inline constexpr int kRunStopped = -1;

/// The callbacks of a run.
struct TrainingEvents {
  /// Called on rank 0 after each step, between the batches of an evaluation, and between the bytes
  /// of a sample. If it returns true, the run ends there, with a checkpoint of the steps done.
  std::function<bool()> stop_requested = [] { return false; };
  /// CheckpointOptions::observe, with the rank that calls it.
  std::function<void(int rank, CheckpointPoint)> at_checkpoint_point = {};
  /// The least length of a window over which the ranks are compared (Note [Slow ranks]).
  std::chrono::milliseconds slow_rank_window{5'000};
  /// LaunchOptions::link.
  LinkModel link = {};
};

/// Trains as `options` say, on its own ranks, and prints to standard output. Returns the exit
/// code: 1 if a checkpoint or a part of the logs could not be written, else kRunStopped or 0.
/// It keeps other runs out of the folder of its checkpoints.
int run_training(const TrainConfig& options, const TrainingData& data,
                 const TrainingEvents& events);

}  // namespace moegrad::training
