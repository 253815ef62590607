// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/fma_chains_of.h"

namespace moegrad::kernels {

void run_avx512_chains([[maybe_unused]] volatile float* memory,
                       [[maybe_unused]] std::int64_t steps) {
#if defined(__AVX512F__)
  run_chains_of<Vec<float, 64>>(memory, steps);
#endif
}

}  // namespace moegrad::kernels
