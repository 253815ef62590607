// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moegrad::kernels {

inline constexpr int kChains = 12;  // as in the largest tile: enough to hide the latency of an fma

/// Runs kChains chains of fused multiply-adds for `steps` steps, in registers alone, on the
/// vectors of the rank's kernels. No other float32 code of a core has more FLOP/s. Operands are
/// read from *memory and a result is written there, so that the compiler keeps the loop.
void run_fma_chains(volatile float* memory, std::int64_t steps);
/// The FLOPs of run_fma_chains(memory, steps): two per multiply-add of an element.
double fma_chain_flops(std::int64_t steps);

/// The chains on vectors of 32 and of 64 bytes; the latter only if uses_avx512().
void run_narrow_chains(volatile float* memory, std::int64_t steps);
void run_avx512_chains(volatile float* memory, std::int64_t steps);

}  // namespace moegrad::kernels
