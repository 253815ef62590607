// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "framework/runtime/span.h"

namespace moegrad {

/// What one rank worked in one window of time, such as a few steps, waits left out.
struct RankTime {
  std::chrono::nanoseconds compute{0};
  std::chrono::nanoseconds communication{0};

  std::chrono::nanoseconds work() const { return compute + communication; }
  friend bool operator==(const RankTime&, const RankTime&) = default;
};

/// Where a slow rank loses its time.
enum class SlowIn : std::uint8_t { kCompute, kCommunication };
std::string_view to_string(SlowIn what);

/// A rank that find_slow_ranks() names.
struct SlowRank {
  int rank = 0;
  SlowIn what = SlowIn::kCompute;
  std::size_t window = 0;  // the last of the three
  double ratio = 0;        // of its work in that window to the median of the others
  friend bool operator==(const SlowRank&, const SlowRank&) = default;
};

/// Sums Span::busy, the CPU time, of phases and of collectives.
///
/// Note [Slow ranks]
/// In synchronous training all ranks have the same step time: the slow one is that which waits
/// least. So what is compared is a rank's own work. Time on the clock less the waits would be that
/// if every rank had cores of its own; ranks that share them also take each other's time, which
/// tells of the scheduler and not of the rank. CPU time holds neither waits nor the lack of a core,
/// and needs recording level 0 (compute alone) or 1. It does not see a rank that is slow for want
/// of a core; the trace does, by phases longer than their CPU time (cpu_us there).
///
/// A rank on a core that runs slower is slow. On machines that share cores with others that comes
/// and goes within a second, so a window should be as long. Four ranks on two such cores: 1,000
/// clean windows of 8 steps (0.25 s) named a rank about 20 times, 500 of 16 steps once, 250 of 32
/// steps (1 s) never.
RankTime rank_time(const std::vector<Span>& spans);

/// Fewer ranks are too few to tell who is at fault.
inline constexpr int kFewestRanksToCompare = 4;
/// In how many windows in a row a rank must be slow.
inline constexpr int kSlowWindows = 3;

/// Names each rank whose work, compute and communication, took more than 1.1 times the median of
/// the others in kSlowWindows consecutive windows: once per such row of windows, in order of
/// windows and ranks, with that of the two which exceeds its own median by more time. (Of each by
/// itself the smaller one, a fraction of a millisecond a step perhaps, would be all noise.)
/// windows[w][r] is rank r's time in window w; the median of an even number is the mean of the
/// middle two. With fewer than kFewestRanksToCompare nobody is named.
///
/// ValueError unless all windows have the same number of ranks.
std::vector<SlowRank> find_slow_ranks(const std::vector<std::vector<RankTime>>& windows);

}  // namespace moegrad
