// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "framework/profile/slow_rank.h"
#include "framework/runtime/rank_context.h"

namespace moegrad {

/// Compares the ranks of a launch while it runs (Note [Slow ranks]). Every rank has one and makes
/// it on its own thread.
class SlowRankWatch {
 public:
  /// The first window begins here. Without `compares_compute` the ranks are not compared in it,
  /// because they have not equally much to compute: each counts as the slowest.
  explicit SlowRankWatch(RankContext& context, bool compares_compute = true);

  /// Ends the window and begins the next one. Returns SlowRankFinder::add() of the ranks' work in
  /// the window. Collective; the result is the same on every rank.
  std::vector<SlowRank> close_window();

 private:
  RankContext& context_;
  bool compares_compute_;
  WorkTimes before_;
  SlowRankFinder finder_;
};

}  // namespace moegrad
