// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/slow_rank.h"

#include <algorithm>
#include <array>

#include "framework/runtime/error.h"

namespace moegrad {
namespace {

constexpr std::size_t kFewestRanks = 4;
constexpr int kWindows = 3;

using Member = std::chrono::nanoseconds RankTime::*;
constexpr std::array<Member, 2> kMembers = {&RankTime::compute, &RankTime::communication};

/// Twice the median, an integer for an even number of values too.
std::int64_t twice_median_of_others(const std::vector<RankTime>& ranks, std::size_t rank,
                                    Member member) {
  std::vector<std::int64_t> others;
  for (std::size_t other = 0; other < ranks.size(); ++other) {
    if (other != rank) others.push_back((ranks[other].*member).count());
  }
  std::ranges::sort(others);
  return others[(others.size() - 1) / 2] + others[others.size() / 2];
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
  std::array<std::vector<int>, kMembers.size()> rows;  // windows in a row in which a rank was slow
  rows.fill(std::vector<int>(ranks));
  for (std::size_t window = 0; window < windows.size(); ++window) {
    const auto& times = windows[window];
    check<ValueError>(times.size() == ranks, "find_slow_ranks: window ", window, " must have ",
                      ranks, " ranks as the first, got ", times.size());
    if (ranks < kFewestRanks) continue;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      for (std::size_t kind = 0; kind < kMembers.size(); ++kind) {
        const auto own = (times[rank].*kMembers[kind]).count();
        const auto twice_median = twice_median_of_others(times, rank, kMembers[kind]);
        // own > 1.1 median, in integers; where the others have nothing to do there is no measure.
        const bool above = twice_median > 0 && 20 * own > 11 * twice_median;
        rows[kind][rank] = above ? rows[kind][rank] + 1 : 0;
        if (rows[kind][rank] != kWindows) continue;
        slow.push_back(
            {.rank = static_cast<int>(rank),
             .what = static_cast<SlowIn>(kind),
             .window = window,
             .ratio = 2.0 * static_cast<double>(own) / static_cast<double>(twice_median)});
      }
    }
  }
  return slow;
}

}  // namespace moegrad
