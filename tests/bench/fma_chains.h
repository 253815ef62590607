// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moegrad::bench {

inline constexpr int kChains = 12;  // as in the largest tile: enough to hide an fma's latency

/// `steps` steps of kChains chains of fused multiply-adds on vectors of 32 bytes of floats. The
/// operands come from and the result goes to memory that the compiler must not think about.
void run_narrow_chains(volatile float* memory, std::int64_t steps);
/// The same on vectors of 64 bytes, in builds that have them: kernels::has_avx512().
void run_avx512_chains(volatile float* memory, std::int64_t steps);

}  // namespace moegrad::bench
