// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <vector>

#include "train/logs/log_event.h"

namespace moegrad::training {

struct EventFile {
  std::vector<LogEvent> events = {};  // without the first, which holds the version alone
  std::size_t bytes_left_out = 0;     // of a last record that is incomplete
};

/// Reads an event file as EventFileWriter or TensorFlow makes it. A file that ends inside a record
/// is read up to there: its writer has been killed, or is still at it.
///
/// Throws Error if the file cannot be read, and ValueError `event_reader: <path>: <requirement>,
/// got <what>` where a checksum is wrong or a record holds no event.
EventFile read_event_file(const std::filesystem::path& path);

}  // namespace moegrad::training
