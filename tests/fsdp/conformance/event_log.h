// SPDX-License-Identifier: Apache-2.0
#pragma once

// What happened to which group, as a list of "event group".

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/state.h"

namespace moegrad::test {

/// Records the events of the given kinds, of all groups.
class EventLog final : public fsdp::Observer {
 public:
  explicit EventLog(std::vector<fsdp::Event> kinds) : kinds_(std::move(kinds)) {}

  void on_event(fsdp::Event event, const std::string& group) override {
    if (std::ranges::find(kinds_, event) == kinds_.end()) return;
    events_.push_back(std::string(to_string(event)) + " " + group);
  }
  /// All since the last take().
  std::vector<std::string> take() { return std::exchange(events_, {}); }

 private:
  std::vector<fsdp::Event> kinds_;
  std::vector<std::string> events_;
};

/// Records the events of `root` and all below it.
inline std::shared_ptr<EventLog> log_events(fsdp::State& root, std::vector<fsdp::Event> kinds) {
  auto log = std::make_shared<EventLog>(std::move(kinds));
  root.set_observer(log);
  return log;
}

}  // namespace moegrad::test
