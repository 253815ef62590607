// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "train/config/train_config.h"

namespace moegrad::training {

/// What a metrics file tells of a run beside its numbers. Files of earlier versions lack it: a text
/// is empty where it is unknown.
struct RunHeader {
  std::string identity = {};              // the same after a resumption, else another
  std::string title = {};                 // such as "small on kjv.txt"
  std::string date = {};                  // of the start, such as "2026-01-31T09:30:00Z"
  std::string version = {};               // of moegrad
  std::string cpu = {};                   // such as "AMD EPYC 7B13, 2 CPUs"
  std::vector<std::string> command = {};  // the program and its arguments
  std::string unit = {};                  // losses are in nats per "byte" or per "token"
  std::optional<std::int64_t> steps = {};
  std::optional<double> max_grad_norm = {};  // 0: no clipping
};

/// Of a run that starts now. `run`: what may not change when it is resumed (describe_run).
RunHeader run_header(const TrainConfig& options, std::string_view unit,
                     const std::map<std::string, std::string>& run);

nlohmann::json to_json(const RunHeader& header);

/// What to_json() makes, with any part left out. `who`: how a message begins. ValueError where a
/// part is not of its type.
RunHeader run_header_of(const nlohmann::json& object, const std::string& who);

/// A word of a command as a shell takes it: with quotes where a character needs them.
std::string shell_word(const std::string& word);

}  // namespace moegrad::training
