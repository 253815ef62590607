// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/cpu_check.h"

#ifdef MOEGRAD_CHECK_CPU_AT_START
#include <unistd.h>
#if defined(__aarch64__)
#include <sys/auxv.h>
#else
#include <cpuid.h>
#endif
#endif

// Note [CPU check]
// On an old CPU the program should print a message, not end with an illegal instruction. The check
// therefore runs as the program's first constructor, and only this file is compiled for every CPU
// of the architecture. It uses nothing from the standard library: the linker would merge an inline
// function, such as std::string's, with the copies of other files, which contain AVX instructions.

namespace moegrad {
namespace {

void append(CpuRefusal& refusal, unsigned& length, const char* text) {
  for (; *text != '\0' && length + 1 < sizeof(refusal.message); ++text) {
    refusal.message[length++] = *text;
  }
}

}  // namespace

CpuRefusal refuse_cpu(CpuFeatures features) {
  CpuRefusal refusal = {};
  if ((features & kAllCpuFeatures) == kAllCpuFeatures) return refusal;
  unsigned length = 0;
  append(refusal, length, "moegrad: this build needs a CPU with ");
  append(refusal, length, kCpuLevel);
  append(refusal, length, " (missing: ");
  const char* separator = "";
  for (int i = 0; i < kNumCpuFeatures; ++i) {
    if ((features >> i & 1U) != 0) continue;
    append(refusal, length, separator);
    append(refusal, length, kCpuFeatureNames[i]);
    separator = ", ";
  }
  append(refusal, length, "); build the `portable` preset instead\n");
  return refusal;
}

#ifdef MOEGRAD_CHECK_CPU_AT_START
namespace {

#if defined(__aarch64__)

CpuFeatures detect_cpu_features() {
  constexpr unsigned long kHasCrc32 = 1UL << 7U;  // HWCAP_CRC32
  return (getauxval(AT_HWCAP) & kHasCrc32) != 0 ? 1 : 0;
}

#else

CpuFeatures detect_cpu_features() {
  unsigned a = 0;
  unsigned b7 = 0;
  unsigned c1 = 0;
  unsigned c7 = 0;
  unsigned c81 = 0;
  unsigned d = 0;
  unsigned unused = 0;
  __get_cpuid(1, &a, &unused, &c1, &d);
  __get_cpuid_count(7, 0, &a, &b7, &c7, &d);
  __get_cpuid(0x80000001, &a, &unused, &c81, &d);

  // The wide registers also need an operating system that saves them (XCR0 bits 1 and 2).
  bool saves_ymm = false;
  if ((c1 & bit_OSXSAVE) != 0) {
    unsigned xcr0 = 0;
    __asm__ volatile("xgetbv" : "=a"(xcr0), "=d"(d) : "c"(0));
    saves_ymm = (xcr0 & 6U) == 6U;
  }
  const bool present[kNumCpuFeatures] = {(c1 & bit_SSE3) != 0,
                                         (c1 & bit_SSSE3) != 0,
                                         (c1 & bit_SSE4_1) != 0,
                                         (c1 & bit_SSE4_2) != 0,
                                         (c1 & bit_POPCNT) != 0,
                                         (c1 & bit_CMPXCHG16B) != 0,
                                         (c81 & bit_LAHF_LM) != 0,
                                         (c1 & bit_AVX) != 0 && saves_ymm,
                                         (b7 & bit_AVX2) != 0 && saves_ymm,
                                         (b7 & bit_BMI) != 0,
                                         (b7 & bit_BMI2) != 0,
                                         (c1 & bit_F16C) != 0 && saves_ymm,
                                         (c1 & bit_FMA) != 0 && saves_ymm,
                                         (c81 & bit_LZCNT) != 0,
                                         (c1 & bit_MOVBE) != 0};
  CpuFeatures features = 0;
  for (int i = 0; i < kNumCpuFeatures; ++i) {
    features |= static_cast<CpuFeatures>(present[i]) << i;
  }
  return features;
}

#endif

}  // namespace

// thread_state.cpp names this function so that it gets into every program. 101 is the earliest
// priority that is not reserved.
extern "C" __attribute__((constructor(101))) void moegrad_check_cpu_at_start() {
  const CpuRefusal refusal = refuse_cpu(detect_cpu_features());
  unsigned length = 0;
  while (refusal.message[length] != '\0') ++length;
  if (length == 0) return;
  if (write(STDERR_FILENO, refusal.message, length) < 0) _exit(1);
  _exit(1);
}
#endif

}  // namespace moegrad
