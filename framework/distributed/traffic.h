// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace moegrad {

/// What the calls of one rank move in the groups of one name.
struct Traffic {
  std::atomic<std::int64_t> bytes_sent{0}, bytes_received{0};
  std::atomic<std::int64_t> wait{0};  // nanoseconds that threads of the rank waited for these calls
};

/// What a Traffic has counted.
struct TrafficFigures {
  std::int64_t bytes_sent = 0;
  std::int64_t bytes_received = 0;
  std::int64_t wait = 0;  // nanoseconds

  friend bool operator==(const TrafficFigures&, const TrafficFigures&) = default;
};

/// The Traffic of a group and of all groups that came from it, by their names.
class TrafficLog {
 public:
  std::shared_ptr<Traffic> of(const std::string& group);
  std::map<std::string, TrafficFigures> read() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Traffic>> groups_;
};

}  // namespace moegrad
