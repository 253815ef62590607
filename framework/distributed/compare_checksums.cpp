// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/compare_checksums.h"

#include <cstddef>
#include <span>

#include "framework/distributed/collectives.h"
#include "framework/runtime/error.h"

namespace moegrad {

void compare_checksums(std::string_view what, ProcessGroup& group,
                       const std::vector<std::string>& names,
                       const std::vector<std::int64_t>& checksums) {
  const auto ranks = static_cast<std::size_t>(group.size()), n = checksums.size();
  std::vector<std::int64_t> all(ranks * n);
  all_gather(group, checksums, std::span(all),
             {.queue = CollectiveQueue::kSameValues, .label = "checksums"});
  for (std::size_t i = 0; i < n; ++i) {
    const auto of = [&](std::size_t rank) { return all[rank * n + i]; };
    bool lacks = false;
    for (std::size_t rank = 0; rank < ranks; ++rank) lacks = lacks || of(rank) == kNoChecksum;
    if (lacks) continue;
    std::string others;
    for (std::size_t rank = 1; rank < ranks; ++rank) {
      if (of(rank) != of(0)) others += (others.empty() ? "" : ", ") + std::to_string(rank);
    }
    check(others.empty(), what, ": every rank must pass the same values of '", names[i],
          "', got others on rank ", others, " than on rank 0 of group '", group.name(), "'");
  }
}

}  // namespace moegrad
