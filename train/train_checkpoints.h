// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/io/checkpoint_saver.h"
#include "framework/runtime/rank_context.h"
#include "nn/module.h"
#include "optim/optimizer.h"

namespace moegrad::training {

/// Names of the optimizer's tensors in a checkpoint begin so; the others are the model's parameters
/// and persistent buffers.
inline constexpr std::string_view kOptimizerPrefix = "optimizer.";

/// Where a checkpoint records TrainState::skipped_steps.
inline constexpr const char* kSkippedSteps = "skipped_steps";

/// What a training run changes as it goes on. Samples and learning rates are functions of the step,
/// so a checkpoint of this is all that a run needs to go on as if it had never been stopped.
struct TrainState {
  nn::Module& model;
  optim::Optimizer& optimizer;
  std::int64_t step = 0;           // steps done, skipped ones included
  std::int64_t skipped_steps = 0;  // whose update was left out (StepResult::is_finite)
};

/// The checkpoint that a run goes on from.
struct ResumedFrom {
  std::filesystem::path folder;
  int world_size = 1;  // ranks that saved it
};

struct TrainCheckpointOptions {
  std::int64_t interval = 100;  // steps from one checkpoint to the next; 0: none on its own
  std::int64_t keep = 2;        // CheckpointOptions::keep
  /// What the run is: texts by name. A checkpoint of another run is refused.
  std::map<std::string, std::string> run = {};
  /// What this run, or a checkpoint, has under names that it does not record. Compared first.
  std::vector<std::pair<std::string, std::string>> formerly = {};
  /// Whether a run that records `saved` under `name`, where this one records something else, has
  /// been the same for its first `step` steps, so that this one may go on from there. Never unless
  /// set.
  std::function<bool(const std::string& name, const std::string& saved, std::int64_t step)>
      same_so_far = {};
  /// What else a checkpoint of so many steps records; it is not compared.
  std::function<std::map<std::string, std::string>(std::int64_t step)> values = {};
  /// False: a folder that has checkpoints is refused.
  bool resume = true;
  /// CheckpointOptions::observe.
  std::function<void(CheckpointPoint)> observe = {};
};

/// The checkpoints of a run in a folder, written in the background: a run that is killed goes on
/// from the newest one, at any number of ranks.
///
///     TrainState state{model, optimizer};
///     TrainCheckpoints checkpoints("runs/a", state, {.interval = 50});
///     checkpoints.resume();  // also where the run is new
///     for (; state.step < steps; checkpoints.after_step()) {
///       ...
///       ++state.step;
///     }
///     checkpoints.save();
///     checkpoints.finish();
///
/// One object per rank; all ranks create it and call it together. Rank 0 keeps other programs out
/// of the folder (FolderLock) while the object exists.
class TrainCheckpoints {
 public:
  /// The options are checked and the folder is created here. An empty folder name means none: then
  /// nothing is ever saved. `state` must outlive the object.
  TrainCheckpoints(const std::string& folder, TrainState& state,
                   TrainCheckpointOptions options = {});

  /// Fills `state` from the newest sound checkpoint and returns where it was; none if there is no
  /// checkpoint.
  /// ValueError if it is of another run, or if there are checkpoints and `resume` is false. Error
  /// if all are damaged.
  std::optional<ResumedFrom> resume();
  /// After ++state.step: saves where that is due.
  void after_step();
  /// Saves unless this step is saved already, or nothing has changed since it was resumed from.
  /// Error before resume() has been called, since the folder may have checkpoints of another run.
  void save();
  /// Waits for the last save. False if it or an earlier one failed, which has been logged.
  bool finish();

 private:
  NamedTensors tensors() const;

  std::string folder_;
  TrainState& state_;
  TrainCheckpointOptions options_;
  RankContext& context_;
  std::int64_t saved_ = -1;  // the step of the last save, or of the checkpoint resumed from
  bool failed_ = false;      // a save
  bool resume_called_ = false;
  std::optional<FolderLock> lock_;
  std::optional<CheckpointSaver> saver_;
};

}  // namespace moegrad::training
