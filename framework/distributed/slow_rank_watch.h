// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "framework/distributed/process_group.h"
#include "framework/profile/slow_rank.h"
#include "framework/runtime/rank_context.h"

namespace moegrad {

/// Compares the ranks of a group while they run (Note [Slow ranks]): those that do equal work, as
/// the stage of ParallelMeshes. Every rank has one and makes it on its own thread.
class SlowRankWatch {
 public:
  /// The first window begins here. Without `compares_compute` the ranks are not compared in it,
  /// because they have not equally much to compute: each counts as the slowest.
  SlowRankWatch(RankContext& context, std::shared_ptr<ProcessGroup> group,
                bool compares_compute = true);

  /// Ends the window and begins the next one. Returns SlowRankFinder::add() of the ranks' work in
  /// the window, by their ranks in the launch. Collective; the result is the same on every rank of
  /// the group. Empty without one.
  std::vector<SlowRank> close_window();

 private:
  RankContext& context_;
  std::shared_ptr<ProcessGroup> group_;
  bool compares_compute_;
  WorkTimes before_;
  SlowRankFinder finder_;
};

}  // namespace moegrad
