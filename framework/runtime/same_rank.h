// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/runtime/rank_context.h"

namespace moegrad {

/// For the context of another thread that works for the current rank.
inline RankContext::Options same_rank() {
  const auto& rank = RankContext::current();
  return {.rank = rank.rank(),
          .world_size = rank.world_size(),
          .log_level = rank.log_level(),
          .work = rank.work()};
}

}  // namespace moegrad
