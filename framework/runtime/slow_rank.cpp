// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/slow_rank.h"

#include <algorithm>
#include <utility>

#include "framework/runtime/error.h"

namespace moegrad {
namespace {

struct Twice {
  std::int64_t compute = 0, communication = 0, work = 0;
};

/// Twice the median of `values`, an integer for an even number of them too.
std::int64_t twice_median(std::vector<std::int64_t> values) {
  std::ranges::sort(values);
  return values[(values.size() - 1) / 2] + values[values.size() / 2];
}

Twice twice_median_of_others(const std::vector<RankTime>& ranks, std::size_t rank) {
  std::vector<std::int64_t> compute, communication, work;
  for (std::size_t other = 0; other < ranks.size(); ++other) {
    if (other == rank) continue;
    compute.push_back(ranks[other].compute.count());
    communication.push_back(ranks[other].communication.count());
    work.push_back(ranks[other].work().count());
  }
  return {.compute = twice_median(std::move(compute)),
          .communication = twice_median(std::move(communication)),
          .work = twice_median(std::move(work))};
}

}  // namespace

std::string_view to_string(SlowIn what) {
  return what == SlowIn::kCompute ? "compute" : "communication";
}

RankTime rank_time(const std::vector<Span>& spans) {
  RankTime time;
  for (const auto& span : spans) {
    if (span.kind == SpanKind::kPhase) time.compute += span.busy;
    if (span.kind == SpanKind::kCollective) time.communication += span.busy;
  }
  return time;
}

std::vector<SlowRank> find_slow_ranks(const std::vector<std::vector<RankTime>>& windows) {
  std::vector<SlowRank> slow;
  if (windows.empty()) return slow;
  const auto ranks = windows[0].size();
  std::vector<int> rows(ranks);  // windows in a row in which a rank was slow
  for (std::size_t window = 0; window < windows.size(); ++window) {
    const auto& times = windows[window];
    check<ValueError>(times.size() == ranks, "find_slow_ranks: window ", window, " must have ",
                      ranks, " ranks as the first, got ", times.size());
    if (std::ssize(times) < kFewestRanksToCompare) continue;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const auto& own = times[rank];
      const auto others = twice_median_of_others(times, rank);
      // work > 1.1 median, in integers; where the others have nothing to do there is no measure.
      const bool above = others.work > 0 && 20 * own.work().count() > 11 * others.work;
      rows[rank] = above ? rows[rank] + 1 : 0;
      if (rows[rank] != kSlowWindows) continue;
      const bool compute = 2 * own.compute.count() - others.compute >=
                           2 * own.communication.count() - others.communication;
      slow.push_back({.rank = static_cast<int>(rank),
                      .what = compute ? SlowIn::kCompute : SlowIn::kCommunication,
                      .window = window,
                      .ratio = 2.0 * static_cast<double>(own.work().count()) /
                               static_cast<double>(others.work)});
    }
  }
  return slow;
}

}  // namespace moegrad
