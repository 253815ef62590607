// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/check_golden/golden_case.h"

namespace moegrad::tools {

/// What the folder should expect and does not, each as `file: name`, for a model that has these
/// parameters by Hugging Face's names (Note [Golden folders] says what may be absent).
/// ValueError if it expects something of another parameter.
std::vector<std::string> missing_expectations(const GoldenCase& golden,
                                              const std::vector<std::string>& parameters);

}  // namespace moegrad::tools
