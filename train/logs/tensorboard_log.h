// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "framework/io/output_file.h"
#include "train/logs/event_file.h"
#include "train/logs/metrics.h"

namespace moegrad::training {

/// A training run's curves for TensorBoard, with torchtitan's names. If the folder can no longer be
/// written, as on a full disk, it reports that once and counts the losses.
class TensorboardLog {
 public:
  /// Adds an event file to `folder`, for the steps from `first_step` on; does nothing if `folder`
  /// is empty. Error if it cannot, ValueError if another run is writing a file in it.
  ///
  /// If first_step is 0, event files of an earlier run are moved to a new subfolder `1`, `2`, ...,
  /// which TensorBoard shows as a run of its own. Otherwise readers drop the steps from first_step
  /// on of the earlier files.
  explicit TensorboardLog(const std::string& folder, std::int64_t first_step = 0);

  void write(const StepReport& report);
  /// Writes, for each mixture layer, how many tokens each expert got.
  void write_expert_loads(const StepReport& report);
  /// After `step` steps.
  void write_validation(std::int64_t step, double loss);
  /// At the end of a run: reports how many writes were lost. Returns false if any were.
  bool report() const { return lost_.report(); }

 private:
  void attempt(const std::function<void(EventFileWriter&)>& write);

  std::optional<EventFileWriter> file_;
  LostWrites lost_{"--tensorboard"};
};

}  // namespace moegrad::training
