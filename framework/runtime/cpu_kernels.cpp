// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/cpu_kernels.h"

#include <algorithm>

#include "framework/runtime/error.h"

#if defined(__AVX2__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#endif

namespace moegrad {
namespace {

#if defined(__AVX2__)

struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

Registers features(unsigned sub_leaf) {
  Registers found;
  __get_cpuid_count(7, sub_leaf, &found.a, &found.b, &found.c, &found.d);
  return found;
}

// A process has to ask for the registers of tiles once, then all its threads have them.
bool has_tiles() {
  constexpr unsigned kAmxBf16 = 1U << 22U, kAmxTile = 1U << 24U;
  constexpr long kAskForState = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  return (features(0).d & (kAmxBf16 | kAmxTile)) == (kAmxBf16 | kAmxTile) &&
         syscall(SYS_arch_prctl, kAskForState, kTileData) == 0;
}

std::vector<CpuKernels> detect() {
  std::vector kernels{CpuKernels::kNarrow};
  if (__builtin_cpu_supports("avx512f") == 0) return kernels;
  constexpr unsigned kAvx512Bf16 = 1U << 5U;
  kernels.push_back(CpuKernels::kAvx512);
  if ((features(1).a & kAvx512Bf16) != 0) kernels.push_back(CpuKernels::kAvx512Bf16);
  if (has_tiles()) kernels.push_back(CpuKernels::kAmx);
  return kernels;
}

// The shortest time of what `instructions` runs.
std::chrono::nanoseconds shortest(void (*instructions)()) {
  using Clock = std::chrono::steady_clock;
  auto least = Clock::duration::max();
  for (int run = 0; run < 20; ++run) {
    const auto begin = Clock::now();
    for (int i = 0; i < 100; ++i) instructions();
    least = std::min(least, Clock::now() - begin);
  }
  return least;
}

// Fifteen chains on vectors of 64 bytes, which a core can overlap, of zeros.
void run_fma() {
  asm volatile(
      ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n vpxord %%zmm\\n, %%zmm\\n, %%zmm\\n\n.endr\n"
      ".rept 16\n"
      ".irp n, 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n vfmadd231ps %%zmm0, %%zmm0, %%zmm\\n\n.endr\n"
      ".endr\n"
      "vzeroupper"
      :
      :
      : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
        "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
}
void run_bf16() {
  asm volatile(
      ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n vpxord %%zmm\\n, %%zmm\\n, %%zmm\\n\n.endr\n"
      ".rept 16\n"
      ".irp n, 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n vdpbf16ps %%zmm0, %%zmm0, %%zmm\\n\n.endr\n"
      ".endr\n"
      "vzeroupper"
      :
      :
      : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
        "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
}

// An instruction for bfloat16 does the work of two.
bool bf16_is_faster() { return shortest(run_bf16) < 2 * shortest(run_fma); }

#else

std::vector<CpuKernels> detect() { return {CpuKernels::kNarrow}; }
bool bf16_is_faster() { return false; }

#endif

}  // namespace

std::string_view to_string(CpuKernels kernels) {
  switch (kernels) {
    case CpuKernels::kNarrow:
#if defined(__AVX2__)
      return "avx2";
#elif defined(__aarch64__)
      return "neon";
#else
      return "portable";
#endif
    case CpuKernels::kAvx512:
      return "avx512";
    case CpuKernels::kAvx512Bf16:
      return "avx512_bf16";
    case CpuKernels::kAmx:
      return "amx";
  }
  return "unknown";
}

const std::vector<CpuKernels>& available_cpu_kernels() {
  static const auto kKernels = detect();
  return kKernels;
}

std::string names_of_cpu_kernels() {
  std::string names;
  for (const auto kernels : available_cpu_kernels()) {
    names += (names.empty() ? "" : ", ") + std::string(to_string(kernels));
  }
  return names;
}

CpuKernels fastest_of(const std::vector<CpuKernels>& kernels) {
  if (kernels.back() == CpuKernels::kAvx512Bf16 && !bf16_is_faster()) return CpuKernels::kAvx512;
  return kernels.back();
}

CpuKernels fastest_cpu_kernels() {
  static const auto kFastest = fastest_of(available_cpu_kernels());
  return kFastest;
}

void check_available(std::string_view op, CpuKernels kernels) {
  check<ValueError>(std::ranges::count(available_cpu_kernels(), kernels) == 1, op,
                    ": kernels must be among those that this CPU can run, ", names_of_cpu_kernels(),
                    ", got ", kernels);
}

}  // namespace moegrad
