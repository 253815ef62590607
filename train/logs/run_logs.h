// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "framework/runtime/rank_context.h"
#include "train/config/train_config.h"
#include "train/logs/metrics.h"
#include "train/logs/progress.h"
#include "train/logs/recent_loads.h"
#include "train/logs/step_profile.h"
#include "train/logs/tensorboard_log.h"

namespace moegrad::training {

/// What the logs of a run say of it.
struct LoggedRun {
  RunHeader header = {};
  std::string configuration = {};  // describe()
  std::int64_t first_step = 0;     // where it begins or goes on
  std::int64_t steps = 0;
  int expert_parallel = 1;
  bool offloads = false;                         // --offload
  std::map<std::string, std::string> axes = {};  // ParallelMeshes::axes_of_groups()
};

/// The output of a training run: printed lines, the metrics file, TensorBoard, a trace. Each rank
/// has one; all ranks make it and call it together. Rank 0 writes.
class RunLogs {
 public:
  /// Every rank has its `profile`. `output` must outlive it. Error or ValueError if something
  /// cannot be written.
  RunLogs(const TrainConfig::Output& output, LoggedRun run, RankContext& context,
          StepProfile& profile);

  void begin_step(std::int64_t step);
  /// Fills in the missing parts of `report` and shows it.
  void end_step(StepReport report);
  /// Whether --validation-interval asks for a validation loss after `steps` steps. False after the
  /// last step.
  bool validation_due(std::int64_t steps) const;
  /// Logs a validation loss in nats per `unit`, such as "byte".
  void validation(std::int64_t steps, double loss, std::string_view unit);
  /// The same for that of a run which begins, or goes on, after `steps` steps: logs it if it is
  /// due, unless the file of metrics has kept it; it then goes to the event file alone.
  void first_validation(std::int64_t steps, double loss, std::string_view unit);
  /// At the end of training: prints how evenly the experts were used in the last steps.
  void recent_loads();
  /// Call it before anything else is printed.
  void end_line() { progress_.finish(); }
  /// At the end: reports what could not be written. Returns false if there is anything.
  bool report() const;

 private:
  bool records() const;
  void record_peaks(StepReport& report);

  const TrainConfig::Output& output_;
  LoggedRun run_;  // without its header; without its configuration once that has been shown
  RankContext& context_;
  StepProfile& profile_;
  std::optional<double> peak_flops_ = {};  // if anything records it
  RecentLoads recent_loads_;
  Progress progress_;
  TensorboardLog tensorboard_;
  MetricsFile metrics_;  // after what may be refused: it drops lines that are to be written again
  ExchangeMeter exchange_;
  AxisMeter axes_;
  SwapMeter swap_;
};

}  // namespace moegrad::training
