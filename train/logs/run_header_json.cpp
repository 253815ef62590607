// SPDX-License-Identifier: Apache-2.0
#include "train/logs/run_header_json.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "framework/io/utf8.h"
#include "framework/runtime/error.h"
#include "train/logs/metrics_lines.h"

namespace moegrad::training {
namespace {

using nlohmann::json;

std::string text_of(const json& object, const char* key, const std::string& who) {
  const auto found = object.find(key);
  if (found == object.end()) return {};
  check<ValueError>(found->is_string(), who, ": ", key, " must be a text, got ",
                    in_quotes(found->dump()));
  return found->get<std::string>();
}

std::vector<std::string> command_of(const json& object, const std::string& who) {
  const auto found = object.find("command");
  if (found == object.end()) return {};
  const auto is_text = [](const json& word) { return word.is_string(); };
  check<ValueError>(found->is_array() && std::ranges::all_of(*found, is_text), who,
                    ": command must be a list of texts, got ", in_quotes(found->dump()));
  return found->get<std::vector<std::string>>();
}

std::optional<std::int64_t> steps_of(const json& object, const std::string& who) {
  const auto found = object.find("steps");
  if (found == object.end()) return std::nullopt;
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  const bool sound = found->is_number_unsigned()
                         ? found->get<std::uint64_t>() <= kMost
                         : found->is_number_integer() && found->get<std::int64_t>() >= 0;
  check<ValueError>(sound, who, ": steps must be an integer from 0 to ", kMost, ", got ",
                    in_quotes(found->dump()));
  return found->get<std::int64_t>();
}

}  // namespace

json to_json(const RunHeader& header) {
  json object = json::object();
  const auto add = [&object](const char* key, const auto& value) {
    if (!value.empty()) object[key] = value;
  };
  add("identity", header.identity);
  add("title", header.title);
  add("date", header.date);
  add("version", header.version);
  add("cpu", header.cpu);
  add("command", header.command);
  add("unit", header.unit);
  if (header.steps) object["steps"] = *header.steps;
  if (header.max_grad_norm) object["max_grad_norm"] = *header.max_grad_norm;
  return object;
}

RunHeader run_header_of(const json& object, const std::string& who) {
  RunHeader header = {.identity = text_of(object, "identity", who),
                      .title = text_of(object, "title", who),
                      .date = text_of(object, "date", who),
                      .version = text_of(object, "version", who),
                      .cpu = text_of(object, "cpu", who),
                      .command = command_of(object, who),
                      .unit = text_of(object, "unit", who),
                      .steps = steps_of(object, who)};
  if (object.contains("max_grad_norm")) {
    header.max_grad_norm = number_of(object, "max_grad_norm", who);
  }
  return header;
}

}  // namespace moegrad::training
