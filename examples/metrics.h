// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fstream>
#include <string>

#include "examples/trainer.h"

namespace moegrad::examples {

struct StepReport {
  std::int64_t step = 0;
  double lr = 0;
  double seconds = 0;
  std::int64_t tokens = 0;
  int world_size = 1;
  StepResult result = {};

  double tokens_per_second() const { return static_cast<double>(tokens) / seconds; }
  /// Tokens per second per rank.
  double tgs() const { return tokens_per_second() / world_size; }
};

/// Busiest expert over the mean, per mixture layer.
std::vector<double> expert_load(const StepResult& result);

/// One printed line per step.
std::string to_string(const StepReport& report);

/// Writes one JSON object per line; does nothing for an empty path.
class MetricsFile {
 public:
  /// For the steps from `first_step` on; of an earlier file, the lines before it stay. ValueError
  /// if the file cannot be written.
  explicit MetricsFile(const std::string& path, std::int64_t first_step = 0);
  void write(const StepReport& report);
  void write_validation(std::int64_t step, double loss);

 private:
  std::ofstream file_;
};

}  // namespace moegrad::examples
