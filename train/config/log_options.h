// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "train/config/train_options.h"

namespace CLI {
class App;
}

namespace moegrad::training {

/// Steps from `begin` up to `end`.
struct StepRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  bool contains(std::int64_t step) const { return begin <= step && step < end; }
};

/// The flags of what a run shows of itself beside the metrics file.
void add_log_options(CLI::App& app, TrainOptions& options);

/// The steps of --profile-steps, none without. ValueError unless it is a:b with
/// 0 <= a < b <= steps, and for --profile alone.
std::optional<StepRange> profiled_steps(const TrainOptions& options);

}  // namespace moegrad::training
