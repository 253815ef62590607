// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/bf16/kernels.h"
#include "ops/kernels/bf16/loops_of_pairs.h"

namespace moegrad::kernels::bf16 {

const Loops* avx512_loops() {
#if defined(__AVX512F__)
  static constexpr auto kLoops = tile_loops::make_loops<tile_loops::FmaPair<Vec<float, 64>>>();
  return &kLoops;
#else
  return nullptr;
#endif
}

}  // namespace moegrad::kernels::bf16
