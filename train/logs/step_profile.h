// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "framework/io/output_file.h"
#include "framework/profile/timeline.h"
#include "framework/runtime/rank_context.h"
#include "train/config/train_config.h"
#include "train/logs/metrics.h"

namespace moegrad::training {

/// Records the spans of --profile-steps on all ranks of a run and writes them as a trace. Every
/// rank has one, and they call it together. Outside these steps recording is off.
class StepProfile {
 public:
  /// For these steps, if any. An empty path means kDefaultTrace.
  StepProfile(std::optional<StepRange> steps, const std::string& path);

  /// On rank 0, before the first step: opens the file. If all profiled steps are before that, warns
  /// that there will be none.
  /// ValueError if it cannot be written.
  void open(std::int64_t first_step);
  void begin_step(std::int64_t step, RankContext& context);
  /// After the last profiled step, rank 0 writes the trace and gets the figures.
  std::optional<ProfileFigures> end_step(std::int64_t step, RankContext& context);
  /// On rank 0: false if the trace could not be written.
  bool report() const { return lost_.report(); }

 private:
  ProfileFigures write(const std::vector<RankTimeline>& ranks);

  std::optional<StepRange> steps_;
  std::string path_;
  std::optional<OutputFile> file_;
  LostWrites lost_{"--profile"};
  RankTimeline own_;
};

}  // namespace moegrad::training
