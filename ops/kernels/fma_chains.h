// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moegrad::kernels {

inline constexpr int kChains = 12;  // as in the largest tile: enough to hide the latency of an fma

/// `steps` steps of kChains chains of fused multiply-adds on the widest vectors that this processor
/// has, in registers alone: the most FLOP/s of float32 that a core can reach. The operands come
/// from memory, and the result goes there, so that the compiler must compute it.
void run_fma_chains(volatile float* memory, std::int64_t steps);
/// The floating-point operations of that, two per multiply-add of an element.
double fma_chain_flops(std::int64_t steps);

/// The chains on vectors of 32 and of 64 bytes; the latter only if has_avx512().
void run_narrow_chains(volatile float* memory, std::int64_t steps);
void run_avx512_chains(volatile float* memory, std::int64_t steps);

}  // namespace moegrad::kernels
