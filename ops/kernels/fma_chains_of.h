// SPDX-License-Identifier: Apache-2.0
#pragma once

// The chains for one width of vectors: Note [Two vector widths].

#include "ops/kernels/fma_chains.h"
#include "ops/kernels/simd.h"

namespace moegrad::kernels {

// All loops over the chains are unrolled, so that they stay in registers.
template <class V>
void run_chains_of(volatile float* memory, std::int64_t steps) {
  V sum[kChains];
  float start = 0;
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) sum[i] = V::broadcast(start += *memory);
  const auto a = V::broadcast(*memory);
  const auto b = V::broadcast(*memory);
  for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) accumulate(sum[i], a, b);
  }
  float result[V::kLanes] = {};
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) {
    float lanes[V::kLanes];
    sum[i].store(lanes);
    for (int l = 0; l < V::kLanes; ++l) result[l] += lanes[l];
  }
  *memory = result[0] > 0 ? 0.5F : 0.25F;
}

}  // namespace moegrad::kernels
