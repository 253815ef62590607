// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "framework/distributed/threads/rendezvous.h"

namespace moegrad {

/// The last requests that one rank posted, oldest first. Once it is full, it allocates no more
/// (labels keep their capacity), so that every training step finds the same heap.
class CollectiveHistory {
 public:
  static constexpr std::size_t kLength = 32;

  CollectiveHistory() { requests_.reserve(kLength); }

  void add(const CollectiveRequest& request) {
    if (requests_.size() < kLength) return requests_.push_back(request);
    std::rotate(requests_.begin(), requests_.begin() + 1, requests_.end());
    requests_.back() = request;
  }
  const std::vector<CollectiveRequest>& requests() const { return requests_; }

 private:
  std::vector<CollectiveRequest> requests_;
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

/// The line of a request that has been posted. `state` is Channel::state(), or "given up".
HistoryLine history_line(const CollectiveRequest& request, std::string_view state);

/// The lines of each rank in aligned columns. Ranks with the same lines are shown together:
///
///     ranks 0-2
///       done    group world  sequence 0  barrier
///       joined  group world  sequence 1  all_gather of 64 float32  layers.1
///     rank 3
///       done    group world  sequence 0  barrier
std::string format_history(const std::vector<std::vector<HistoryLine>>& ranks);

}  // namespace moegrad
