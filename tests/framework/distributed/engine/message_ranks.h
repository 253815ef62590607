// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

#include "framework/distributed/launch_options.h"
#include "framework/runtime/rank_context.h"

namespace moegrad::test {

/// launch() on a transport that no program uses. Ranks are threads that share nothing, as if each
/// were a process: they send each other messages. How long each message takes, and whether it is
/// copied when it is sent or when it is received, is drawn from `seed`, so messages that need not
/// keep their order do not. No message comes before its time, and no rank is woken for another's.
void launch_on_messages(int world_size, const std::function<void(RankContext&)>& body,
                        const LaunchOptions& options, std::uint64_t seed);

}  // namespace moegrad::test
