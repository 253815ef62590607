// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "framework/io/json_node.h"

namespace moegrad::training {

/// Called with an object of a metrics file and its step.
using MetricsLineVisitor = std::function<void(std::int64_t step, const JsonNode& line)>;

/// Reads a metrics file (metrics.h) line by line. The last line of a killed run may be cut short,
/// and so may that of a run that goes on: the bytes that the file has when it is opened are read.
/// Such a line is left out, and the number of its bytes is returned.
///
/// Throws Error if the file cannot be read, and ValueError `metrics: <path>: line <number>: <what
/// is required>, got <what>`.
std::size_t read_metrics_lines(const std::string& path, const MetricsLineVisitor& visit);

}  // namespace moegrad::training
