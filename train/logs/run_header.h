// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <iosfwd>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "train/config/train_config.h"

namespace moegrad::training {

/// What a metrics file says about a run besides its numbers. Files of earlier versions lack it;
/// then a text is empty.
struct RunHeader {
  std::string identity = {};              // the same if a run is resumed, else different
  std::string title = {};                 // such as "small on kjv.txt"
  std::string date = {};                  // of the start, such as "2026-01-31T09:30:00Z"
  std::string version = {};               // of moegrad
  std::string cpu = {};                   // such as "AMD EPYC 7B13, 2 CPUs"
  std::string kernels = {};               // of its products, such as "avx2"
  std::vector<std::string> command = {};  // the program and its arguments
  std::string unit = {};                  // losses are in nats per "byte" or per "token"
  std::optional<std::int64_t> steps = {};
  std::int64_t validation_interval = 0;      // 0: at the end alone; not part of the file
  std::optional<double> max_grad_norm = {};  // 0: no clipping
};

/// The header of a run that starts now. `run`: what may not change at resumption (describe_run).
RunHeader run_header(const TrainConfig& options, std::string_view unit,
                     const std::map<std::string, std::string>& run);

/// The CPU's name in the text of /proc/cpuinfo, such as "AMD EPYC 7B13". On arm64, where it has
/// none, its numbers, such as "implementer 0x41, part 0xd0c". Empty if the text has neither.
std::string cpu_model(std::istream& cpuinfo);

/// A word of a command as a shell reads it: in quotes if a character needs them.
std::string shell_word(const std::string& word);

}  // namespace moegrad::training
