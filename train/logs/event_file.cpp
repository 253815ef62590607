// SPDX-License-Identifier: Apache-2.0
#include "train/logs/event_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <string>
#include <system_error>
#include <utility>

#include "framework/io/append.h"
#include "framework/runtime/error.h"
#include "framework/runtime/utf8.h"
#include "train/logs/tf_record.h"

namespace moegrad::training {
namespace {

void require(bool ok, std::string_view step, const std::filesystem::path& path, int reason) {
  if (ok) return;
  check(false, "event_file: cannot ", step, " ", path.string(), ": ",
        std::generic_category().message(reason));
}

// TensorFlow's readers refuse a message with a string that is not UTF-8.
std::string checked_tag(std::string_view tag) {
  check<ValueError>(!tag.empty() && valid_utf8_prefix(tag) == tag.size(),
                    "event_file: tag must be UTF-8 and not empty, got ", in_quotes(tag));
  return std::string(tag);
}

LoggedHistogram histogram_of(std::string tag, std::span<const std::int64_t> counts) {
  LoggedHistogram histogram = {.tag = std::move(tag)};
  for (std::size_t i = 0; i < counts.size(); ++i) {
    check<ValueError>(counts[i] >= 0, "event_file: ", in_quotes(histogram.tag), ": count ", i,
                      " must be at least 0, got ", counts[i]);
    const auto value = static_cast<double>(i);
    const auto count = static_cast<double>(counts[i]);
    // TensorBoard drops the empty bins at both ends, then takes min and max as the outer edges of
    // the remaining bins.
    if (counts[i] > 0) {
      if (histogram.num == 0) histogram.min = value - 0.5;
      histogram.max = value + 0.5;
    }
    histogram.num += count;
    histogram.sum += count * value;
    histogram.sum_squares += count * value * value;
    histogram.limits.push_back(value + 0.5);
    histogram.counts.push_back(count);
  }
  return histogram;
}

constexpr std::string_view kPrefix = "events.out.tfevents.";

// The largest number of seconds in the name of an event file of the folder; 0 if there is none.
std::int64_t newest_in(const std::filesystem::path& folder) {
  std::int64_t newest = 0;
  std::error_code failure;  // ignored: creating a file there reports it
  for (const auto& entry : std::filesystem::directory_iterator(folder, failure)) {
    const auto name = entry.path().filename().string();
    if (!is_event_file(name)) continue;
    std::int64_t seconds = 0;
    const auto* const begin = name.data() + kPrefix.size();
    std::from_chars(begin, name.data() + name.size(), seconds);
    newest = std::max(newest, seconds);
  }
  return newest;
}

}  // namespace

bool is_event_file(std::string_view name) {
  return name.starts_with(kPrefix) && name.find(".moegrad.") != name.npos;
}

double system_wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

EventFileWriter::EventFileWriter(std::function<double()> wall_time)
    : wall_time_(std::move(wall_time)) {}

// Delegates to another constructor, so that the file is closed if the first event cannot be
// written.
EventFileWriter::EventFileWriter(const std::filesystem::path& folder,
                                 std::function<double()> wall_time)
    : EventFileWriter(std::move(wall_time)) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  require(!error, "create", folder, error.value());

  const double now = wall_time_();
  // Ten digits, so that names sort like numbers. Readers take files in the order of their names: a
  // file must come after those that it goes on from, also if the clock has been set back.
  const auto seconds = std::max(static_cast<std::int64_t>(now), newest_in(folder) + 1);
  char name[64];
  std::snprintf(name, sizeof name, "events.out.tfevents.%010lld.moegrad.",
                static_cast<long long>(seconds));
  for (int number = 0; descriptor_ < 0; ++number) {
    path_ = folder / (name + std::to_string(number));
    descriptor_ = open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    require(descriptor_ >= 0 || errno == EEXIST, "create", path_, errno);
  }
  // For is_written(), which may just be asking. Some file systems have no locks.
  flock(descriptor_, LOCK_EX);
  append({.wall_time = now, .file_version = std::string(kEventFileVersion)});
}

bool is_written(const std::filesystem::path& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return false;
  const bool locked = flock(descriptor, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  close(descriptor);
  return locked;
}

EventFileWriter::~EventFileWriter() {
  if (descriptor_ >= 0) close(descriptor_);
}

void EventFileWriter::start_session(std::int64_t step) {
  append({.wall_time = wall_time_(), .step = step, .session_start = true});
}

void EventFileWriter::add_scalar(std::string_view tag, double value, std::int64_t step) {
  append({.wall_time = wall_time_(),
          .step = step,
          .scalars = {{.tag = checked_tag(tag), .value = static_cast<float>(value)}}});
}

void EventFileWriter::add_histogram(std::string_view tag, std::span<const std::int64_t> counts,
                                    std::int64_t step) {
  check<ValueError>(!counts.empty(), "event_file: ", in_quotes(tag),
                    ": histogram must have a bin, got none");
  append({.wall_time = wall_time_(),
          .step = step,
          .histograms = {histogram_of(checked_tag(tag), counts)}});
}

void EventFileWriter::append(const LogEvent& event) {
  const int failure = append_whole(descriptor_, to_tf_record(to_proto(event)));
  require(failure == 0, "write", path_, failure);
}

}  // namespace moegrad::training
