// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "tools/check_golden/golden_case.h"

namespace moegrad::tools {

/// Reads a folder of the kind kPretrained; throws an Error that names the file and what is wrong
/// with it.
GoldenCase read_golden_pretrained(const std::filesystem::path& folder);

}  // namespace moegrad::tools
