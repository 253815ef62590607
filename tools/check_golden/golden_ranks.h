// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/distributed/process_group.h"
#include "tools/check_golden/golden_runs.h"

namespace moegrad::tools {

/// Error unless all ranks of the group have the same losses, outputs and routing, bit for bit.
/// Gradients and parameters, which rank 0 alone has, are not compared. Collective.
void check_same_on_all_ranks(ProcessGroup& group, const GoldenResults& results);

}  // namespace moegrad::tools
