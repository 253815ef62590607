// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace moegrad {

/// The instructions that a rank's products are computed with. Their results have the same bits
/// (Note [Two vector widths], Note [bfloat16 products]).
enum class CpuKernels : std::uint8_t {
  kNarrow,      // vectors of 32 bytes: "avx2", on arm64 "neon", in a portable build "portable"
  kAvx512,      // vectors of 64 bytes
  kAvx512Bf16,  // also VDPBF16PS, for bfloat16
  kAmx,         // vectors of 64 bytes, and TDPBF16PS for bfloat16
};

std::string_view to_string(CpuKernels kernels);
inline std::ostream& operator<<(std::ostream& out, CpuKernels kernels) {
  return out << to_string(kernels);
}

/// All that the build has and this CPU can run, kNarrow first.
const std::vector<CpuKernels>& available_cpu_kernels();

/// "avx2, avx512, amx", the names of available_cpu_kernels().
std::string names_of_cpu_kernels();

/// The fastest of `kernels`, which are available and in that order. VDPBF16PS is where a
/// measurement says so: on some CPUs it takes four times as long as a multiply-add, which does half
/// as much.
CpuKernels fastest_of(const std::vector<CpuKernels>& kernels);
/// The fastest of all that are available, decided at the first call.
CpuKernels fastest_cpu_kernels();

/// ValueError of `op` unless they are available; it names those that are.
void check_available(std::string_view op, CpuKernels kernels);

}  // namespace moegrad
