// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/fma_chains.h"

#include "ops/kernels/fma_chains_of.h"
#include "ops/kernels/product_loops.h"

namespace moegrad::kernels {

void run_narrow_chains(volatile float* memory, std::int64_t steps) {
  run_chains_of<Vec<float>>(memory, steps);
}

void run_fma_chains(volatile float* memory, std::int64_t steps) {
  uses_avx512() ? run_avx512_chains(memory, steps) : run_narrow_chains(memory, steps);
}

double fma_chain_flops(std::int64_t steps) {
  return 2.0 * kChains * (uses_avx512() ? 16 : 8) * static_cast<double>(steps);
}

}  // namespace moegrad::kernels
