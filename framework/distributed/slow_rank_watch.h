// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "framework/profile/slow_rank.h"
#include "framework/runtime/rank_context.h"

namespace moegrad {

/// Compares the ranks of a launch while it goes on (Note [Slow ranks]). Every rank has one, made on
/// its own thread.
class SlowRankWatch {
 public:
  /// The first window begins here.
  explicit SlowRankWatch(RankContext& context);

  /// Ends the window and begins the next one. Collective; the answer is the same on every rank:
  /// SlowRankFinder::add() of what they have worked in it.
  std::vector<SlowRank> close_window();

 private:
  RankContext& context_;
  WorkTimes before_;
  SlowRankFinder finder_;
};

}  // namespace moegrad
