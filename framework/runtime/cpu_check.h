// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moegrad {

/// What x86-64-v3 adds to x86-64. Bit i of a CpuFeatures means kCpuFeatureNames[i].
using CpuFeatures = std::uint32_t;

inline constexpr const char* kCpuFeatureNames[] = {
    "sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "cmpxchg16b", "lahf", "avx",
    "avx2", "bmi1",  "bmi2",   "f16c",   "fma",    "lzcnt",      "movbe"};
inline constexpr int kNumCpuFeatures = sizeof(kCpuFeatureNames) / sizeof(kCpuFeatureNames[0]);
inline constexpr CpuFeatures kAllCpuFeatures = (CpuFeatures{1} << kNumCpuFeatures) - 1;

struct CpuRefusal {
  char message[256];  // empty when the build may run
};

/// Why a build for x86-64-v3 must not run on a CPU with these features. See Note [CPU check].
CpuRefusal refuse_cpu(CpuFeatures features);

}  // namespace moegrad
