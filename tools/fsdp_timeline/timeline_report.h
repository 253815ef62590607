// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/fsdp_timeline/timeline_run.h"

namespace moegrad::tools {

/// As text, one figure per line. What a LinkModel made is marked as modelled.
std::string timeline_summary(const TimelineOptions& options,
                             const std::vector<RankTimeline>& ranks);

}  // namespace moegrad::tools
