// SPDX-License-Identifier: Apache-2.0
#include "train/logs/run_header.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <thread>

#include "framework/io/crc32c.h"
#include "framework/io/utf8.h"
#include "framework/runtime/error.h"
#include "train/logs/metrics_lines.h"

namespace moegrad::training {
namespace {

using nlohmann::json;

std::string file_name(const std::string& path) {
  const auto end = path.find_last_not_of('/') + 1;  // npos + 1 is 0
  const auto name = std::filesystem::path(path.substr(0, end)).filename().string();
  return name.empty() ? path : name;
}

std::string title_of(const TrainConfig& options) {
  const auto model = !options.model.hf_model.empty() ? file_name(options.model.hf_model)
                     : !options.model.config.empty() ? file_name(options.model.config)
                                                     : options.model.preset;
  const auto text =
      options.data.text.empty() ? "the King James text" : file_name(options.data.text);
  return model + " on " + (options.data.tokens.empty() ? text : file_name(options.data.tokens));
}

std::string now() {
  const std::time_t seconds = std::time(nullptr);
  std::tm utc = {};
  gmtime_r(&seconds, &utc);
  std::array<char, 64> text{};
  const auto size = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return {text.data(), size};
}

// The CPU's name; empty if the system does not tell.
std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return {};
}

std::string cpu() {
  const auto name = cpu_name();
  if (name.empty()) return {};
  const auto count = std::thread::hardware_concurrency();
  return name + ", " + std::to_string(count) + (count == 1 ? " CPU" : " CPUs");
}

std::string identity_of(const std::map<std::string, std::string>& run) {
  const auto text = json(run).dump(-1, ' ', false, json::error_handler_t::replace);
  return "CRC-32C " + std::to_string(crc32c(std::as_bytes(std::span(text))));
}

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

bool needs_quotes(char c) {
  const auto byte = static_cast<unsigned char>(c);
  const bool letter = ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || ('0' <= c && c <= '9');
  return byte < 0x80 && !letter && std::string_view("_-./:=,@%+").find(c) == std::string_view::npos;
}

}  // namespace

RunHeader run_header(const TrainConfig& options, std::string_view unit,
                     const std::map<std::string, std::string>& run) {
  return {.identity = identity_of(run),
          .title = title_of(options),
          .date = now(),
          .version = MOEGRAD_VERSION,
          .cpu = cpu(),
          .command = options.command,
          .unit = std::string(unit),
          .steps = options.optim.steps,
          .max_grad_norm = options.optim.max_grad_norm};
}

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

std::string shell_word(const std::string& word) {
  if (!word.empty() && std::ranges::none_of(word, needs_quotes)) return word;
  std::string quoted(1, '\'');
  for (const char c : word) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  quoted += '\'';
  return quoted;
}

}  // namespace moegrad::training
