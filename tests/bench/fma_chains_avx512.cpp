// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/fma_chains_of.h"

namespace moegrad::bench {

void run_avx512_chains([[maybe_unused]] volatile float* memory,
                       [[maybe_unused]] std::int64_t steps) {
#if defined(__AVX512F__)
  run_chains_of<kernels::Vec<float, 64>>(memory, steps);
#endif
}

}  // namespace moegrad::bench
