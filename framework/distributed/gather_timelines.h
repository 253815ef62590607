// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "framework/distributed/process_group.h"
#include "framework/profile/timeline.h"

namespace moegrad {

/// On rank 0 the timelines of all ranks of `group`, in their order; nothing on the others.
/// Collective and blocking.
std::vector<RankTimeline> gather_timelines(ProcessGroup& group, const RankTimeline& own);

}  // namespace moegrad
