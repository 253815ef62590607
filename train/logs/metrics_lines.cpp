// SPDX-License-Identifier: Apache-2.0
#include "train/logs/metrics_lines.h"

#include <optional>

#include "framework/io/input_file.h"
#include "framework/runtime/error.h"

namespace moegrad::training {
namespace {

constexpr int kMaxDepth = 4;
constexpr std::int64_t kMostMetricsBytes = std::int64_t{4} << 30;

}  // namespace

std::size_t read_metrics_lines(const std::string& path, const MetricsLineVisitor& visit) {
  const auto text = read_input_file(path, "metrics", kMostMetricsBytes, InputChanges::kGrowth);
  std::string_view rest(text);
  for (int number = 1; !rest.empty(); ++number) {
    const auto end = rest.find('\n');
    const auto line = rest.substr(0, end);
    const auto subject = "metrics: " + path + ": line " + std::to_string(number);
    std::optional<JsonNode> parsed;
    try {
      parsed = JsonNode::parse(line, kMaxDepth, subject);
    } catch (const ValueError&) {
      // A line is written together with its end, so a line without end may be incomplete.
      if (end != std::string_view::npos) throw;
      return line.size();
    }
    visit((*parsed)["step"].count(), *parsed);
    if (end == std::string_view::npos) break;
    rest.remove_prefix(end + 1);
  }
  return 0;
}

}  // namespace moegrad::training
