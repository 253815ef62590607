// SPDX-License-Identifier: Apache-2.0
#pragma once

// PyTorch's files in tests/golden/schedules.

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "tests/source_dir.h"

namespace moegrad::test {

inline constexpr const char* kGoldenSchedules[] = {
    "dualpipev_4rank_10mb", "zb1p_2rank_2stagep_comms", "zb1p_2rank_2stagep_compute"};

/// The text of such a file.
inline std::string golden_schedule(const std::string& name) {
  std::ifstream file(source_dir() / "tests/golden/schedules" / (name + ".csv"), std::ios::binary);
  EXPECT_TRUE(file.is_open()) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace moegrad::test
