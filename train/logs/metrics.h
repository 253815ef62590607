// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "framework/io/output_file.h"
#include "framework/profile/timeline.h"
#include "train/logs/run_header.h"
#include "train/train_step.h"

namespace moegrad::training {

/// Where the time of communication went in profiled steps.
struct ProfileFigures {
  std::int64_t steps = 0;
  TimelineFigures timeline = {};
};

struct StepReport {
  std::int64_t step = 0;
  double lr = 0;
  double seconds = 0;       // of the whole step
  double data_seconds = 0;  // of which making its micro-batches
  std::int64_t tokens = 0;
  int world_size = 1;
  StepResult result = {};
  /// Most of any rank since the report before.
  std::array<std::int64_t, kMemoryTags> peak_bytes = {};  // of each tag by itself
  std::int64_t peak_total = 0;
  std::optional<ProfileFigures> profile = {};  // after the last of the profiled steps
  std::string configuration = {};              // in the first report of a run, and of a resumed one

  double tokens_per_second() const { return static_cast<double>(tokens) / seconds; }
  /// Tokens per second per rank.
  double tgs() const { return tokens_per_second() / world_size; }
};

/// Busiest expert over the mean, per mixture layer.
std::vector<double> expert_load(const StepResult& result);

/// What is printed of a step, such as "loss 5.5451", the most important figure first.
std::vector<std::string> figures(const StepReport& report);

/// Writes one JSON object per line; does nothing for an empty path.
class MetricsFile {
 public:
  /// For the steps from `first_step` on; of an earlier file, the lines before it stay. The earlier
  /// file is kept under another name (LineFile::set_aside) where it is not of the run that `header`
  /// identifies, where it holds more behind these lines than what that run writes again, and from
  /// step 0 on. The first line that is written has `header` as well. ValueError if the file cannot
  /// be written.
  explicit MetricsFile(const std::string& path, std::int64_t first_step = 0,
                       std::optional<RunHeader> header = std::nullopt);
  void write(const StepReport& report);
  /// After `step` steps.
  void write_validation(std::int64_t step, double loss);
  /// At the end of a run: says how many lines could not be written; false if any.
  bool report() const { return !file_ || file_->report(); }

 private:
  void write_line(nlohmann::json line);

  std::optional<LineFile> file_;
  std::optional<RunHeader> header_;  // until it has been written
};

}  // namespace moegrad::training
