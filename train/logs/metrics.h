// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "framework/io/output_file.h"
#include "framework/profile/timeline.h"
#include "train/logs/axis_traffic.h"
#include "train/logs/exchange.h"
#include "train/logs/run_header.h"
#include "train/logs/swap_figures.h"
#include "train/train_step.h"

namespace moegrad::training {

/// How the time of communication was spent in profiled steps.
struct ProfileFigures {
  std::int64_t steps = 0;
  TimelineFigures timeline = {};
};

struct StepReport {
  std::int64_t step = 0;
  double lr = 0;
  double seconds = 0;       // of the whole step
  double data_seconds = 0;  // part of it: making its micro-batches
  std::int64_t tokens = 0;
  int world_size = 1;
  std::int64_t skipped_steps = 0;         // TrainState::skipped_steps
  std::optional<double> peak_flops = {};  // measure_peak_flops(), where it was measured
  StepResult result = {};
  /// The most of any rank since the previous report.
  std::array<std::int64_t, kMemoryTags> peak_bytes = {};  // of each tag by itself
  std::int64_t peak_total = 0;
  std::optional<ProfileFigures> profile = {};  // after the last of the profiled steps
  int expert_parallel = 1;
  std::optional<ExchangeFigures> exchange = {};  // under expert parallelism
  std::vector<AxisFigures> axes = {};            // with more than one rank
  std::optional<SwapFigures> swap = {};          // where something is offloaded
  std::string configuration = {};                // in the first report of a run or a resumed run

  double tokens_per_second() const { return static_cast<double>(tokens) / seconds; }
  /// Tokens per second per rank.
  double tgs() const { return tokens_per_second() / world_size; }
  /// Model FLOPs utilisation: the share of peak_flops that the model's FLOPs took.
  std::optional<double> mfu() const;
};

/// The tokens of the busiest expert, divided by the mean; per mixture layer.
std::vector<double> expert_load(const StepResult& result);
/// The largest of these; none without mixture layers.
std::optional<double> worst_load(const StepResult& result);

/// The figures of a step as they are printed, such as "loss 5.5451". The most important comes
/// first.
std::vector<std::string> figures(const StepReport& report);

/// Writes one JSON object per line; does nothing for an empty path.
class MetricsFile {
 public:
  /// For the steps from `first_step` on. Lines of an earlier file for steps before that stay, and
  /// so does the validation loss after as many steps, unless the run ends there. The first line
  /// that is written also contains `header`. ValueError if the file cannot be written.
  ///
  /// The earlier file is kept under another name (LineFile::set_aside) if first_step is 0, if it
  /// belongs to another run than `header`, or if after these lines it contains more than this run
  /// writes again, as when it is to end earlier. A warning says if what stays has holes: lacks
  /// steps, or has a line without one.
  explicit MetricsFile(const std::string& path, std::int64_t first_step = 0,
                       std::optional<RunHeader> header = std::nullopt);
  void write(const StepReport& report);
  /// After `step` steps.
  void write_validation(std::int64_t step, double loss);
  /// Whether the validation loss after first_step steps has stayed.
  bool had_validation() const { return had_validation_; }
  /// At the end of a run: reports how many lines could not be written. Returns false if any.
  bool report() const { return !file_ || file_->report(); }

 private:
  std::optional<LineFile> file_;
  std::optional<RunHeader> header_;  // until it has been written
  bool had_validation_ = false;
};

}  // namespace moegrad::training
