// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>

#include "framework/distributed/link_model.h"
#include "framework/io/checkpoint_writer.h"
#include "train/config/train_config.h"
#include "train/data/training_data.h"

namespace moegrad::training {

/// The callbacks of a run.
struct TrainingEvents {
  /// Called after each step, between the batches of an evaluation, and between the bytes of a
  /// sample: on rank 0 where ranks are threads, on every rank where they are processes. If any
  /// returns another number than 0, the run ends there, with a checkpoint of the steps done.
  std::function<int()> stop_requested = [] { return 0; };
  /// CheckpointOptions::observe, with the rank that calls it.
  std::function<void(int rank, CheckpointPoint)> at_checkpoint_point = {};
  /// The least length of a window over which the ranks are compared (Note [Slow ranks]).
  std::chrono::milliseconds slow_rank_window{5'000};
  /// LaunchOptions::link.
  LinkModel link = {};
};

/// Trains as `options` say, on its own ranks, and prints to standard output. They are threads, or
/// the processes that mpirun has started. Returns 1 if a checkpoint or a part of the logs could not
/// be written; -n if stop_requested has returned n and the run has ended before its last step; else
/// 0. It keeps other runs out of the folder of its checkpoints. ValueError if `data` has the bytes
/// of a text and the model's vocab_size is not 256, or ids that the model's vocabulary lacks.
int run_training(const TrainConfig& options, const TrainingData& data,
                 const TrainingEvents& events);

}  // namespace moegrad::training
