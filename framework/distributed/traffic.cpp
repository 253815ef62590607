// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/traffic.h"

namespace moegrad {

std::shared_ptr<Traffic> TrafficLog::of(const std::string& group) {
  const std::lock_guard lock(mutex_);
  auto& traffic = groups_[group];
  if (traffic == nullptr) traffic = std::make_shared<Traffic>();
  return traffic;
}

std::map<std::string, TrafficFigures> TrafficLog::read() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, TrafficFigures> figures;
  for (const auto& [group, traffic] : groups_) {
    figures[group] = {.bytes_sent = traffic->bytes_sent,
                      .bytes_received = traffic->bytes_received,
                      .wait = traffic->wait};
  }
  return figures;
}

}  // namespace moegrad
