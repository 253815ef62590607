// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <vector>

#include "train/logs/log_event.h"

namespace moegrad::training {

struct EventFile {
  std::vector<LogEvent> events = {};  // without the first, which contains only the version
  std::size_t bytes_left_out = 0;     // of an incomplete last record
};

/// Reads an event file as TensorBoard does, up to a record that is cut short. Throws Error if a
/// checksum is wrong or a record is not an event.
EventFile read_event_file(const std::filesystem::path& path);

}  // namespace moegrad::training
