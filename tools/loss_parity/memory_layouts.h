// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tools/loss_parity/parity_runs.h"

namespace moegrad::tools {

/// Plans of what the layers of ParityModel::kAllLayers keep, make again and swap: first few lists
/// in which each pair of items of --recompute and --offload, and of these and a loss in chunks,
/// meets that does not contradict itself, and each of them meets each dtype and each of the ways to
/// divide the model, over at most four ranks. The first have most. Then each item alone.
std::vector<ParityLayout> memory_layouts();

}  // namespace moegrad::tools
