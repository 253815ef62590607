// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <vector>

#include "framework/runtime/work_time.h"

namespace moegrad {

// Note [Slow ranks]
// In synchronous training all ranks have the same step time: the slow rank is the one that waits
// least. So the comparison is of each rank's own work, wall time minus waits, by class:
//
//     compute        WorkGuard(kCompute), as the program sets it: its steps, minus the waits
//     communication  for each step of a collective, from when all ranks could begin it (the last
//                    one had arrived) until this rank's part was done: its link and its copying
//     data           WorkGuard(kData): making batches
//     checkpoint     writing the rank's own file, in the background too
//
// Wall time shows what CPU time does not: a core that is shared or missing, a link, a disk. It also
// shows other programs on the same cores, for which the rank is not to blame. Such programs come
// and go, so a rank is named only if it stays behind for kSlowWindows windows in a row. A window
// should be some seconds long.
//
// Compute is compared only if all ranks have equally much to compute. They do not if the ranks do
// not divide the micro-batches, or if tokens travel to experts on other ranks: there a rank has as
// much to do as its experts are chosen.

/// A rank that was slow, and the class of work in which it was slow.
struct SlowRank {
  int rank = 0;
  WorkClass what = WorkClass::kCompute;
  double ratio = 0;  // its work in the last window, divided by the median of the others'
  friend bool operator==(const SlowRank&, const SlowRank&) = default;
};

/// The number of windows in a row in which a rank must be slow before it is named.
inline constexpr int kSlowWindows = 3;

/// Compares the work of the ranks, window by window.
///
/// The excess of rank r in class c is its work in c minus the median of the other ranks' work in c.
/// Rank r is slow in class c of a window if c has its largest excess, and if that excess is more
/// than 0.3 times the median of all the work of the others. The median of an even number of values
/// is the mean of the middle two. Windows in which no rank worked in c are skipped: not every
/// window has a checkpoint.
class SlowRankFinder {
 public:
  /// ValueError unless ranks >= 1. A single rank is never slow.
  explicit SlowRankFinder(int ranks);

  /// Takes the work of each rank in the next window. Returns, by ascending rank, the ranks that
  /// have now been slow in one class for kSlowWindows windows in a row, once per such row.
  /// ValueError unless there is one entry per rank.
  std::vector<SlowRank> add(const std::vector<WorkTimes>& window);

 private:
  std::vector<std::array<int, kWorkClasses>> rows_;  // windows in a row, by rank and class
};

}  // namespace moegrad
