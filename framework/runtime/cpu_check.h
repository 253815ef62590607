// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moegrad {

/// What the level of a release build, kCpuLevel, adds to what every CPU of the architecture has.
/// Bit i of a CpuFeatures means kCpuFeatureNames[i].
using CpuFeatures = std::uint32_t;

#if defined(__aarch64__)
inline constexpr const char* kCpuLevel = "armv8-a+crc";
inline constexpr const char* kCpuFeatureNames[] = {"crc32"};
#else
inline constexpr const char* kCpuLevel = "x86-64-v3";
inline constexpr const char* kCpuFeatureNames[] = {
    "sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "cmpxchg16b", "lahf", "avx",
    "avx2", "bmi1",  "bmi2",   "f16c",   "fma",    "lzcnt",      "movbe"};
#endif
inline constexpr int kNumCpuFeatures = sizeof(kCpuFeatureNames) / sizeof(kCpuFeatureNames[0]);
inline constexpr CpuFeatures kAllCpuFeatures = (CpuFeatures{1} << kNumCpuFeatures) - 1;

struct CpuRefusal {
  char message[256];  // empty when the build may run
};

/// Why a release build must not run on a CPU with these features. See Note [CPU check].
CpuRefusal refuse_cpu(CpuFeatures features);

}  // namespace moegrad
