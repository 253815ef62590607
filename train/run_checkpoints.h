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

/// Names of the optimizer's tensors in a checkpoint begin so; the others are parameters.
inline constexpr std::string_view kOptimizerPrefix = "optimizer.";

/// What may not change when a run is resumed, as text: the values of its options by their names,
/// but for kUncomparedOptions, and the contents of what it reads.
std::map<std::string, std::string> describe_run(const TrainConfig& options,
                                                const TrainingData& data);

/// The checkpoints of a training run: parameters, the optimizer's state, the step and what the run
/// is. Samples and learning rates are functions of the step and of what the run is, so that is all.
class RunCheckpoints {
 public:
  /// Of one rank; all ranks make it and call it together. Does nothing without --checkpoint-dir,
  /// the folder that `lock` keeps others out of.
  RunCheckpoints(const TrainConfig& options, const TrainingData& data, RankContext& context,
                 models::Qwen3Moe& model, const optim::Optimizer& optimizer, const FolderLock* lock,
                 std::function<void(CheckpointPoint)> observe);

  /// describe_run().
  const std::map<std::string, std::string>& run() const { return run_; }
  /// Optimizer steps done before: those of the newest sound checkpoint, which fills the model and
  /// the optimizer; 0 without --resume or where there is no checkpoint.
  ///
  /// ValueError if the checkpoint is of another run, or if there are checkpoints without --resume.
  std::int64_t resume();
  /// Saves after `steps` done where that is due; `last`: as well.
  void after_step(std::int64_t steps, bool last);
  /// Waits for the last save; false if it or an earlier one failed.
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
  bool failed_ = false;      // a save
  std::optional<CheckpointSaver> saver_;
};

}  // namespace moegrad::training
