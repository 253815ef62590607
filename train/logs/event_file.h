// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string_view>

#include "train/logs/log_event.h"

namespace moegrad::training {

/// Seconds since 1970.
double system_wall_time();

/// An event file, which TensorBoard shows: scalars and histograms over steps.
///
/// Each writer makes a new file `events.out.tfevents.<seconds>.moegrad.<number>` in its folder. A
/// resumed run adds a file and begins it with start_session(); TensorBoard reads all of them in the
/// order of their names.
///
/// Each call has written its event when it returns. So a killed run leaves whole events and, at the
/// end, perhaps a part of one. A call that fails, for example on a full disk or because the file
/// has been removed, leaves no part. For one thread at a time.
class EventFileWriter {
 public:
  /// Makes the folder if there is none. All functions throw Error
  /// `event_file: cannot <step> <path>: <reason>`.
  explicit EventFileWriter(const std::filesystem::path& folder,
                           std::function<double()> wall_time = system_wall_time);
  ~EventFileWriter();
  EventFileWriter(const EventFileWriter&) = delete;
  EventFileWriter& operator=(const EventFileWriter&) = delete;

  /// Says that a run goes on from `step`: readers drop what earlier files have from that step on.
  void start_session(std::int64_t step);
  /// Adds a point to the curve `tag`, rounded to float. ValueError unless the tag is UTF-8 and not
  /// empty. A '/' in it groups curves.
  void add_scalar(std::string_view tag, double value, std::int64_t step);
  /// Adds a histogram with counts[i] values in bin i, for example the tokens of expert i. The bin
  /// reaches from i - 1/2 to i + 1/2 on the axis. ValueError unless there is a bin and every count
  /// is at least 0.
  void add_histogram(std::string_view tag, std::span<const std::int64_t> counts, std::int64_t step);

  const std::filesystem::path& path() const { return path_; }

 private:
  explicit EventFileWriter(std::function<double()> wall_time);
  void append(const LogEvent& event);

  std::function<double()> wall_time_;
  std::filesystem::path path_;
  int descriptor_ = -1;
};

/// Whether a file of this name is one of an EventFileWriter.
bool is_event_file(std::string_view name);
/// Whether an EventFileWriter of any program writes the file now, as far as the file system has
/// locks.
bool is_written(const std::filesystem::path& path);

}  // namespace moegrad::training
