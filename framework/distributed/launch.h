// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>

#include "framework/distributed/link_model.h"
#include "framework/runtime/rank_context.h"

namespace moegrad {

struct LaunchOptions {
  int threads_per_rank = 1;
  /// A collective that not all ranks have joined after this long fails on every rank.
  std::chrono::milliseconds deadline{60'000};
  /// Models a slower link by sleeping; none by default.
  LinkModel link = {};
};

/// Runs `body` on `world_size` ranks, each a thread with a RankContext and a communication thread
/// of its own; `RankContext::current().group()` is the group of all ranks. Returns when all ranks
/// have ended. If ranks throw, the collectives of all others fail at once, and the exception that
/// came first is rethrown.
///
/// Throws ValueError if world_size < 1.
void launch(int world_size, const std::function<void(RankContext&)>& body,
            const LaunchOptions& options = {});

}  // namespace moegrad
