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

/// Reads an event file that EventFileWriter or TensorFlow has made. A file that ends inside a
/// record is read up to there: its writer has been killed, or is still writing.
///
/// Throws Error if the file cannot be read. If a checksum is wrong or a record is not an event,
/// throws ValueError `event_reader: <path>: <requirement>, got <what>`.
EventFile read_event_file(const std::filesystem::path& path);

}  // namespace moegrad::training
