// SPDX-License-Identifier: Apache-2.0
#include "tools/compare_losses/metrics_run.h"

#include "framework/runtime/error.h"
#include "train/logs/metrics_lines.h"

namespace moegrad::tools {

using namespace training;

MetricsRun read_metrics(const std::string& path) {
  MetricsRun run = {.path = path};
  const auto add_line = [&run](std::int64_t step, const JsonNode& line) {
    if (line.contains("validation_loss")) {
      run.validation_losses[step] = line["validation_loss"].number_or_nan();
      return;
    }
    ComparedValues values = {};
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = line[kComparedQuantities[i]].number_or_nan();
    }
    run.steps[step] = values;
  };
  run.bytes_left_out = read_metrics_lines(path, add_line);
  check<ValueError>(!run.steps.empty(), "metrics: ", path, ": must have a training step, got none");
  return run;
}

}  // namespace moegrad::tools
