// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "framework/distributed/collective_request.h"

namespace moegrad {

/// The last requests that one rank posted, oldest first. Once it is full, it allocates no more
/// (labels keep their capacity), so that every training step finds the same heap.
class CollectiveHistory {
 public:
  static constexpr std::size_t kLength = 32;

  struct Entry {
    CollectiveRequest request;
    std::int64_t number = 0;  // of all that the rank has posted
  };

  CollectiveHistory() { entries_.reserve(kLength); }

  /// Returns the request's number, by which a backend finds its call again.
  std::int64_t add(const CollectiveRequest& request) {
    const auto number = added_++;
    if (entries_.size() < kLength) {
      entries_.push_back({request, number});
    } else {
      std::rotate(entries_.begin(), entries_.begin() + 1, entries_.end());
      entries_.back().request = request;
      entries_.back().number = number;
    }
    return number;
  }
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  std::vector<Entry> entries_;
  std::int64_t added_ = 0;
};

/// One operation as the report of a failure shows it.
struct HistoryLine {
  std::string state = {};
  std::string where = {};
  std::string sequence = {};
  std::string signature = {};
  std::string label = {};

  friend bool operator==(const HistoryLine&, const HistoryLine&) = default;
};

/// The line of a request that has been posted; `state` says how far it has come.
HistoryLine history_line(const CollectiveRequest& request, std::string_view state);

/// The lines of each rank in aligned columns. Ranks with the same lines are shown together:
///
///     ranks 0-2
///       done    group world  sequence 0  barrier
///       joined  group world  sequence 1  all_gather of 64 float32  layers.1
///     rank 3
///       done    group world  sequence 0  barrier
std::string format_history(const std::vector<std::vector<HistoryLine>>& ranks);
/// The same of some ranks; `numbers`: which they are.
std::string format_history(const std::vector<std::vector<HistoryLine>>& ranks,
                           const std::vector<int>& numbers);

}  // namespace moegrad
