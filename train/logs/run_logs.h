// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "framework/runtime/rank_context.h"
#include "train/config/train_config.h"
#include "train/logs/metrics.h"
#include "train/logs/progress.h"
#include "train/logs/step_profile.h"
#include "train/logs/tensorboard_log.h"

namespace moegrad::training {

/// What a training run shows of itself: printed lines, the metrics file, TensorBoard, a trace. Of
/// one rank; all ranks make it and call it together, rank 0 writes.
class RunLogs {
 public:
  /// For the steps from `first_step` on. `profile` is one for all ranks. Error or ValueError where
  /// something cannot be written.
  RunLogs(const TrainConfig& options, RankContext& context, StepProfile& profile,
          std::int64_t first_step, RunHeader header);

  void begin_step(std::int64_t step);
  /// Fills in what `report` lacks, and shows it.
  void end_step(StepReport report);
  /// Whether --validation-interval asks for a validation loss after `steps` steps, the last ones
  /// left out.
  bool validation_due(std::int64_t steps) const;
  /// In nats per `unit`, such as "byte".
  void validation(std::int64_t steps, double loss, std::string_view unit);
  /// Before something else is printed.
  void end_line() { progress_.finish(); }
  /// At the end: says what could not be written; false if anything.
  bool report() const;

 private:
  void note_peaks(StepReport& report);

  const TrainConfig& options_;
  RankContext& context_;
  StepProfile& profile_;
  std::string configuration_;  // until it has been shown
  Progress progress_;
  MetricsFile metrics_;
  TensorboardLog tensorboard_;
};

}  // namespace moegrad::training
