// SPDX-License-Identifier: Apache-2.0
#include "train/logs/run_header_json.h"

#include <functional>
#include <nlohmann/json.hpp>

namespace moegrad::training {

using nlohmann::json;

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
  add("kernels", header.kernels);
  add("command", header.command);
  add("unit", header.unit);
  if (header.steps) object["steps"] = *header.steps;
  if (header.max_grad_norm) object["max_grad_norm"] = *header.max_grad_norm;
  return object;
}

RunHeader run_header_of(const JsonNode& object) {
  RunHeader header;
  const auto read = [&object](const char* key, auto& field, auto read_value) {
    if (object.contains(key)) field = read_value(object[key]);
  };
  const auto text = std::mem_fn(&JsonNode::text);
  read("identity", header.identity, text);
  read("title", header.title, text);
  read("date", header.date, text);
  read("version", header.version, text);
  read("cpu", header.cpu, text);
  read("kernels", header.kernels, text);
  read("command", header.command,
       [](const JsonNode& words) { return words.list(&JsonNode::text); });
  read("unit", header.unit, text);
  read("steps", header.steps, std::mem_fn(&JsonNode::count));
  read("max_grad_norm", header.max_grad_norm, std::mem_fn(&JsonNode::number_or_nan));
  return header;
}

}  // namespace moegrad::training
