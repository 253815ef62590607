// SPDX-License-Identifier: Apache-2.0
#include "framework/profile/slow_rank.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>

#include "framework/runtime/error.h"

namespace moegrad {
namespace {

std::int64_t work_in(const WorkTimes& times, std::size_t what) { return times[what].count(); }

std::int64_t all_work(const WorkTimes& times) {
  return std::accumulate(times.begin(), times.end(), std::chrono::nanoseconds(0)).count();
}

/// Twice the median of `measure` over all ranks except `rank`. The factor makes it an integer.
template <class Measure>
std::int64_t twice_median(const std::vector<WorkTimes>& ranks, std::size_t rank,
                          const Measure& measure) {
  std::vector<std::int64_t> values;
  for (std::size_t other = 0; other < ranks.size(); ++other) {
    if (other != rank) values.push_back(measure(ranks[other]));
  }
  std::ranges::sort(values);
  return values[(values.size() - 1) / 2] + values[values.size() / 2];
}

/// Twice the rank's excess in each class: its work minus the median of the others' work.
std::array<std::int64_t, kWorkClasses> twice_excess(const std::vector<WorkTimes>& ranks,
                                                    std::size_t rank) {
  std::array<std::int64_t, kWorkClasses> excess{};
  for (std::size_t what = 0; what < kWorkClasses; ++what) {
    const auto in_class = [what](const WorkTimes& times) { return work_in(times, what); };
    excess[what] = 2 * in_class(ranks[rank]) - twice_median(ranks, rank, in_class);
  }
  return excess;
}

}  // namespace

SlowRankFinder::SlowRankFinder(int ranks) {
  check<ValueError>(ranks >= 1, "SlowRankFinder: ranks must be at least 1, got ", ranks);
  rows_.resize(static_cast<std::size_t>(ranks));
}

std::vector<SlowRank> SlowRankFinder::add(const std::vector<WorkTimes>& window) {
  check<ValueError>(window.size() == rows_.size(), "SlowRankFinder: a window must have ",
                    rows_.size(), " ranks, got ", window.size());
  std::vector<SlowRank> slow;
  if (window.size() == 1) return slow;
  for (std::size_t rank = 0; rank < window.size(); ++rank) {
    const auto others = twice_median(window, rank, all_work);
    const auto excess = twice_excess(window, rank);
    const auto largest =
        static_cast<std::size_t>(std::ranges::max_element(excess) - excess.begin());
    // excess > 0.3 others, in integers. If the others did no work there is nothing to compare with.
    const bool is_slow = others > 0 && 10 * excess[largest] > 3 * others;
    for (std::size_t what = 0; what < kWorkClasses; ++what) {
      const bool idle =
          std::ranges::all_of(window, [&](const auto& times) { return work_in(times, what) == 0; });
      if (idle) continue;
      auto& row = rows_[rank][what];
      row = is_slow && what == largest ? row + 1 : 0;
      if (row != kSlowWindows) continue;
      slow.push_back({.rank = static_cast<int>(rank),
                      .what = static_cast<WorkClass>(what),
                      .ratio = 2.0 * static_cast<double>(all_work(window[rank])) /
                               static_cast<double>(others)});
    }
  }
  return slow;
}

}  // namespace moegrad
