// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "framework/distributed/launch_options.h"
#include "framework/runtime/rank_context.h"

namespace moegrad {

/// Runs `body` on `world_size` ranks. Each rank is a thread with its own RankContext and its own
/// communication thread; `RankContext::current().group()` is the group of all ranks. Returns when
/// all ranks have ended (LaunchOptions::exit_after covers a rank that never ends). If ranks throw,
/// the collectives of all others fail at once, and launch() rethrows the first exception.
///
/// A NoGradGuard, GradModeGuard or AnomalyModeGuard around the call holds on every rank, too. No
/// other guard does: each rank makes its own in `body`.
///
/// Throws ValueError if world_size < 1, or if a time of `options` is out of its range.
void launch(int world_size, const std::function<void(RankContext&)>& body,
            const LaunchOptions& options = {});

}  // namespace moegrad
