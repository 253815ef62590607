// SPDX-License-Identifier: Apache-2.0
#include "tests/source_dir.h"

namespace moegrad::test {

std::filesystem::path source_dir() { return MOEGRAD_SOURCE_DIR; }

}  // namespace moegrad::test
