// SPDX-License-Identifier: Apache-2.0
#include "train/logs/metrics_lines.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "framework/io/input_file.h"
#include "framework/io/strict_json.h"
#include "framework/io/utf8.h"
#include "framework/runtime/error.h"

namespace moegrad::training {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 4;
constexpr std::int64_t kMostBytes = std::int64_t{4} << 30;

std::int64_t step_of(const json& line, const std::string& who) {
  check<ValueError>(line.is_object(), who, ": must be an object, got ", in_quotes(line.dump()));
  const auto step = line.find("step");
  check<ValueError>(step != line.end(), who, ": must have step, got none");
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  check<ValueError>(step->is_number_unsigned() && step->get<std::uint64_t>() <= kMost, who,
                    ": step must be an integer from 0 to ", kMost, ", got ",
                    in_quotes(step->dump()));
  return step->get<std::int64_t>();
}

}  // namespace

double number_of(const json& object, std::string_view key, const std::string& who) {
  const auto found = object.find(key);
  check<ValueError>(found != object.end(), who, ": must have ", key, ", got none");
  if (found->is_null()) return std::numeric_limits<double>::quiet_NaN();
  check<ValueError>(found->is_number(), who, ": ", key, " must be a number or null, got ",
                    in_quotes(found->dump()));
  return found->get<double>();
}

std::size_t read_metrics_lines(const std::string& path, const MetricsLineVisitor& visit) {
  const auto text = read_input_file(path, "metrics", kMostBytes);
  std::string_view rest(text);
  for (int number = 1; !rest.empty(); ++number) {
    const auto end = rest.find('\n');
    const auto line = rest.substr(0, end);
    const auto who = "metrics: " + path + ": line " + std::to_string(number);
    json parsed;
    try {
      parsed = parse_strict_json(line, kMaxDepth, who);
    } catch (const ValueError&) {
      // A line is written together with its end, so a line without end may be incomplete.
      if (end != std::string_view::npos) throw;
      return line.size();
    }
    visit(step_of(parsed, who), parsed, who);
    if (end == std::string_view::npos) break;
    rest.remove_prefix(end + 1);
  }
  return 0;
}

}  // namespace moegrad::training
