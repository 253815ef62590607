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

#include "framework/runtime/cpu_kernels.h"
#include "framework/runtime/crc32c.h"
#include "framework/runtime/error.h"
#include "framework/runtime/utf8.h"

namespace moegrad::training {
namespace {

using nlohmann::json;

std::string file_name(const std::string& path) {
  const auto end = path.find_last_not_of('/') + 1;  // npos + 1 is 0
  const auto name = std::filesystem::path(path.substr(0, end)).filename().string();
  return name.empty() ? path : name;
}

std::string title_of(const TrainConfig::Model& model, const TrainConfig::Data& data) {
  const auto name = !model.hf_model.empty() ? file_name(model.hf_model)
                    : !model.config.empty() ? file_name(model.config)
                                            : model.preset;
  const auto text = data.text.empty() ? "the King James text" : file_name(data.text);
  return name + " on " + (data.tokens.empty() ? text : file_name(data.tokens));
}

std::string now() {
  const std::time_t seconds = std::time(nullptr);
  std::tm utc = {};
  gmtime_r(&seconds, &utc);
  std::array<char, 64> text{};
  const auto size = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return {text.data(), size};
}

std::string cpu() {
  std::ifstream file("/proc/cpuinfo");
  const auto name = cpu_model(file);
  if (name.empty()) return {};
  const auto count = std::thread::hardware_concurrency();
  return name + ", " + std::to_string(count) + (count == 1 ? " CPU" : " CPUs");
}

// A run with another number of steps is the same so far, unless the steps shape its learning rates
// from the beginning (same_first_steps).
std::string identity_of(ScheduleKind schedule, std::map<std::string, std::string> run) {
  if (schedule != ScheduleKind::kCosine) run.erase("steps");
  const auto text = json(run).dump(-1, ' ', false, json::error_handler_t::replace);
  return "CRC-32C " + std::to_string(crc32c(std::as_bytes(std::span(text))));
}

bool needs_quotes(char c) {
  const auto byte = static_cast<unsigned char>(c);
  const bool letter = ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || ('0' <= c && c <= '9');
  return byte < 0x80 && !letter && std::string_view("_-./:=,@%+").find(c) == std::string_view::npos;
}

}  // namespace

std::string cpu_model(std::istream& cpuinfo) {
  std::string implementer, part;
  for (std::string line; std::getline(cpuinfo, line);) {
    const auto colon = line.find(": ");
    if (colon == std::string::npos) continue;
    const auto value = line.substr(colon + 2);
    if (line.starts_with("model name")) return value;
    if (line.starts_with("CPU implementer")) implementer = value;
    if (line.starts_with("CPU part")) part = value;
  }
  return part.empty() ? "" : "implementer " + implementer + ", part " + part;
}

RunHeader run_header(const TrainConfig& options, std::string_view unit,
                     const std::map<std::string, std::string>& run) {
  return {
      .identity = identity_of(options.optim.schedule, run),
      .title = title_of(options.model, options.data),
      .date = now(),
      .version = MOEGRAD_VERSION,
      .cpu = cpu(),
      .kernels = std::string(to_string(options.parallel.kernels.value_or(fastest_cpu_kernels()))),
      .command = options.command,
      .unit = std::string(unit),
      .steps = options.optim.steps,
      .validation_interval = options.output.validation_interval,
      .max_grad_norm = options.optim.max_grad_norm};
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
