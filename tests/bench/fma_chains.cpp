// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/fma_chains_of.h"

namespace moegrad::bench {

void run_narrow_chains(volatile float* memory, std::int64_t steps) {
  run_chains_of<kernels::Vec<float>>(memory, steps);
}

}  // namespace moegrad::bench
