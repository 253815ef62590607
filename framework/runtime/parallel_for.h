// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

#include "framework/runtime/error.h"
#include "framework/runtime/rank_context.h"
#include "framework/runtime/thread_pool.h"

namespace moegrad {

/// Calls body(begin, end) for [0, n) cut into pieces of `grain`, on the rank's threads. The cuts
/// depend on n and grain alone, never on the number of threads, so a body that writes its own
/// pieces gives the same bits with any number of threads. The body must not throw or allocate.
/// ValueError unless grain >= 1.
template <class Body>
void parallel_for(std::int64_t n, std::int64_t grain, const Body& body) {
  check<ValueError>(grain >= 1, "parallel_for: grain must be at least 1, got ", grain);
  const auto pieces = (n + grain - 1) / grain;
  const auto piece = [&](std::int64_t i) {
    const auto end = (i + 1) * grain;
    body(i * grain, end < n ? end : n);
  };
  auto& rank = RankContext::current();
  if (pieces <= 1 || rank.pool().threads() == 1) {
    for (std::int64_t i = 0; i < pieces; ++i) piece(i);
    return;
  }
  const auto on_any_thread = [&](std::int64_t i) {
    const ThreadValueGuard<&ThreadState::kernels> guard(rank.kernels());
    piece(i);
  };
  // By reference, so that std::function allocates nothing.
  rank.pool().run(pieces, std::cref(on_any_thread));
}

}  // namespace moegrad
