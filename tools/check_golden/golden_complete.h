// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/check_golden/golden_case.h"

namespace moegrad::tools {

/// The expectations that the folder should have but lacks, each as `file: name`, for a model that
/// has these parameters by Hugging Face's names (Note [Golden folders] says what may be absent).
/// ValueError if it has expectations for another parameter.
std::vector<std::string> missing_expectations(const GoldenCase& golden,
                                              const std::vector<std::string>& parameters);

}  // namespace moegrad::tools
