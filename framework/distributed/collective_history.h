// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "framework/distributed/rendezvous.h"

namespace moegrad {

/// The last requests that one rank posted, oldest first.
class CollectiveHistory {
 public:
  static constexpr std::size_t kLength = 32;

  void add(const CollectiveRequest& request) {
    if (requests_.size() == kLength) requests_.pop_front();
    requests_.push_back(request);
  }
  const std::deque<CollectiveRequest>& requests() const { return requests_; }

 private:
  std::deque<CollectiveRequest> requests_;
};

/// One operation as the report of a failure shows it.
struct HistoryLine {
  std::string state;
  std::string where;
  std::string sequence;
  std::string signature;
  std::string label;

  friend bool operator==(const HistoryLine&, const HistoryLine&) = default;
};

/// The line of a request that has been posted; `state` as of Channel::state(), or "given up".
HistoryLine history_line(const CollectiveRequest& request, std::string_view state);

/// The lines of each rank in aligned columns, ranks with the same lines together:
///
///     ranks 0-2
///       done    group world  sequence 0  barrier
///       joined  group world  sequence 1  all_gather of 64 float32  layers.1
///     rank 3
///       done    group world  sequence 0  barrier
std::string format_history(const std::vector<std::vector<HistoryLine>>& ranks);

}  // namespace moegrad
