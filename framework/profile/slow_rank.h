// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <vector>

#include "framework/profile/work_meter.h"

namespace moegrad {

// Note [Slow ranks]
// In synchronous training all ranks have the same step time: the slow one is that which waits
// least. So what is compared is a rank's own work, time on the clock less its waits, by class:
//
//     compute        WorkGuard(kCompute), as the program sets it: its steps, less the waits
//     communication  of each step of a collective, from when all ranks could begin it (the last one
//                    had arrived) until this rank's part was done: its link and its copying
//     data           WorkGuard(kData): making batches
//     checkpoint     writing the rank's own file, in the background too
//
// Time on the clock sees what CPU time does not: a core that is shared or missing, a link, a disk.
// It also sees other programs on the same cores, which are no fault of the rank. They come and go,
// and a rank is named only if it stays behind for kSlowWindows windows in a row; a window should be
// some seconds long.

/// A rank that was slow, and in what.
struct SlowRank {
  int rank = 0;
  WorkClass what = WorkClass::kCompute;
  double ratio = 0;  // of its work in the last window to the median of the others'
  friend bool operator==(const SlowRank&, const SlowRank&) = default;
};

/// In how many windows in a row a rank must be slow.
inline constexpr int kSlowWindows = 3;

/// Compares what the ranks worked, window by window.
///
/// Rank r is slow in class c of a window if what it worked there beyond the median of the others,
/// its excess, is its largest and more than 0.3 times the median of all the work of the others. The
/// median of an even number is the mean of the middle two. Windows in which nobody worked in c are
/// passed over: not in every window there is a checkpoint.
class SlowRankFinder {
 public:
  /// ValueError unless ranks >= 1. One alone is never slow.
  explicit SlowRankFinder(int ranks);

  /// What each rank worked in the next window. Returns, by ascending rank, whoever has now been
  /// slow in one class for kSlowWindows windows in a row: once for each such row of windows.
  /// ValueError unless there is one entry per rank.
  std::vector<SlowRank> add(const std::vector<WorkTimes>& window);

 private:
  std::vector<std::array<int, kWorkClasses>> rows_;  // windows in a row, by rank and class
};

}  // namespace moegrad
