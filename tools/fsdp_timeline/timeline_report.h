// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/fsdp_timeline/timeline_run.h"

namespace moegrad::tools {

/// The figures as text, one per line. Times that come from a LinkModel are marked as modelled.
std::string timeline_summary(const TimelineOptions& options,
                             const std::vector<RankTimeline>& ranks);

}  // namespace moegrad::tools
