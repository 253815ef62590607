// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/cpu_check.h"

#include <gtest/gtest.h>

#include <string>

namespace moegrad::cpu_check_test {
namespace {

CpuFeatures bit_of(const std::string& name) {
  for (int i = 0; i < kNumCpuFeatures; ++i) {
    if (name == kCpuFeatureNames[i]) return CpuFeatures{1} << i;
  }
  ADD_FAILURE() << "no feature named " << name;
  return 0;
}

TEST(CpuCheck, AcceptsACpuWithEveryFeature) {
  EXPECT_STREQ(refuse_cpu(kAllCpuFeatures).message, "");
  EXPECT_STREQ(refuse_cpu(~CpuFeatures{0}).message, "");
}

TEST(CpuCheck, NamesExactlyTheMissingFeatures) {
  EXPECT_STREQ(refuse_cpu(kAllCpuFeatures & ~bit_of("avx2") & ~bit_of("fma")).message,
               "moegrad: this build needs a CPU with x86-64-v3 (missing: avx2, fma); build the "
               "`portable` preset instead\n");
}

TEST(CpuCheck, RefusesForEachFeatureAlone) {
  for (const char* name : kCpuFeatureNames) {
    EXPECT_NE(std::string(refuse_cpu(kAllCpuFeatures & ~bit_of(name)).message)
                  .find("(missing: " + std::string(name) + ")"),
              std::string::npos);
  }
}

TEST(CpuCheck, MessageHasRoomForAllNames) {
  const std::string message = refuse_cpu(0).message;
  EXPECT_NE(message.find("lzcnt, movbe); build the `portable` preset instead\n"),
            std::string::npos);
}

}  // namespace
}  // namespace moegrad::cpu_check_test
