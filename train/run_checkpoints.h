// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "framework/io/checkpoint_saver.h"
#include "framework/runtime/rank_context.h"
#include "models/qwen3_moe/model.h"
#include "optim/optimizer.h"
#include "train/config/train_config.h"
#include "train/data/training_data.h"

namespace moegrad::training {

/// Names of the optimizer's tensors in a checkpoint begin with it; other tensors are parameters.
inline constexpr std::string_view kOptimizerPrefix = "optimizer.";

/// What may not change when a run is resumed, as text: compared_options(), and the contents of the
/// files that it reads.
std::map<std::string, std::string> describe_run(const TrainConfig& options,
                                                const TrainingData& data);

/// The checkpoints of a training run: parameters, the optimizer's state, the step and a description
/// of the run. Nothing else is needed, because samples and learning rates are functions of the step
/// and the description.
class RunCheckpoints {
 public:
  /// Each rank has one; all ranks make it and call it together. Does nothing without
  /// --checkpoint-dir, the folder that `lock` protects from other programs.
  RunCheckpoints(const TrainConfig& options, const TrainingData& data, RankContext& context,
                 models::Qwen3Moe& model, const optim::Optimizer& optimizer, const FolderLock* lock,
                 std::function<void(CheckpointPoint)> observe);

  /// describe_run().
  const std::map<std::string, std::string>& run() const { return run_; }
  /// Fills the model and the optimizer from the newest sound checkpoint. Returns its number of
  /// optimizer steps; 0 without --resume or if there is no checkpoint.
  ///
  /// ValueError if the checkpoint is of another run, or if there are checkpoints without --resume.
  std::int64_t resume();
  /// Saves if a checkpoint is due after `steps` steps, or if `last`.
  void after_step(std::int64_t steps, bool last);
  /// Waits for the last save. Returns false if it or an earlier one failed.
  bool finish();

 private:
  NamedTensors tensors() const;
  void save(std::int64_t steps);

  const TrainConfig& options_;
  const TrainingData& data_;
  std::map<std::string, std::string> run_;
  RankContext& context_;
  models::Qwen3Moe& model_;
  const optim::Optimizer& optimizer_;
  std::int64_t saved_ = -1;  // steps of the last save or of the checkpoint resumed from
  bool failed_ = false;      // whether a save has failed
  std::optional<CheckpointSaver> saver_;
};

}  // namespace moegrad::training
