// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/cpu_check.h"

#include <gtest/gtest.h>

#include <string>

namespace moegrad::cpu_check_test {
namespace {

std::string refusal(const std::string& missing) {
  return std::string("moegrad: this build needs a CPU with ") + kCpuLevel +
         " (missing: " + missing + "); build the `portable` preset instead\n";
}

TEST(CpuCheck, AcceptsACpuWithEveryFeature) {
  EXPECT_STREQ(refuse_cpu(kAllCpuFeatures).message, "");
  EXPECT_STREQ(refuse_cpu(~CpuFeatures{0}).message, "");
}

TEST(CpuCheck, NamesExactlyTheMissingFeatures) {
  for (int i = 0; i < kNumCpuFeatures; ++i) {
    const auto others = kAllCpuFeatures & ~(CpuFeatures{1} << i);
    EXPECT_EQ(refuse_cpu(others).message, refusal(kCpuFeatureNames[i]));
  }
}

TEST(CpuCheck, NamesAllOfThem) {
  std::string names;
  for (const char* name : kCpuFeatureNames)
    names += (names.empty() ? "" : ", ") + std::string(name);
  EXPECT_EQ(refuse_cpu(0).message, refusal(names));
}

}  // namespace
}  // namespace moegrad::cpu_check_test
