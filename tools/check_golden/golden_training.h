// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tools/check_golden/golden_case.h"
#include "tools/check_golden/golden_files.h"

namespace moegrad::tools {

/// Reads train.json and train_final.safetensors of golden.folder into `golden`. `figures` is
/// expected.json, if there is one.
void read_golden_training(const JsonNode* figures, GoldenCase& golden);

}  // namespace moegrad::tools
