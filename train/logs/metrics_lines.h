// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace moegrad::training {

/// Called with an object of a metrics file, its step, and the beginning of messages about it.
using MetricsLineVisitor =
    std::function<void(std::int64_t step, const nlohmann::json& line, const std::string& who)>;

/// Reads a metrics file (metrics.h) line by line. The last line of a killed run may be cut short.
/// It is left out, and the number of its bytes is returned.
///
/// Throws Error if the file cannot be read, and ValueError `metrics: <path>: line <number>: <what
/// is required>, got <what>`.
std::size_t read_metrics_lines(const std::string& path, const MetricsLineVisitor& visit);

/// A value of `object`. null is NaN: JSON has no other way to write NaN or an infinity. ValueError
/// unless it is there and a number or null.
double number_of(const nlohmann::json& object, std::string_view key, const std::string& who);

}  // namespace moegrad::training
