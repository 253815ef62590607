// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace moegrad::tools {

/// The quantities that are compared at every step.
inline constexpr std::array<std::string_view, 3> kComparedQuantities = {"loss", "ce", "grad_norm"};
using ComparedValues = std::array<double, kComparedQuantities.size()>;

/// The training steps and validation losses of a metrics file (metrics.h).
struct MetricsRun {
  std::string path = {};
  std::map<std::int64_t, ComparedValues> steps = {};
  std::map<std::int64_t, double> validation_losses = {};  // by the steps done
  std::size_t bytes_left_out = 0;                         // of a last line that was cut short
};

/// Reads a metrics file. If a step appears twice, as after a resumption, the later line counts.
/// null means NaN: JSON has no other way to write NaN or an infinity. The last line of a killed run
/// may be cut short.
///
/// Throws Error if the file cannot be read, and ValueError `metrics: <path>: line <number>: <what
/// is required>, got <what>`, or if there is no training step.
MetricsRun read_metrics(const std::string& path);

}  // namespace moegrad::tools
