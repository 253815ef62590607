// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/bf16/kernels.h"
#include "ops/kernels/bf16/loops_of_pairs.h"

namespace moegrad::kernels::bf16 {

#if defined(__AVX512BF16__)
namespace {

// The instruction takes both steps of a word, the upper half first.
struct DotPair {
  using Sum = Vec<float, 64>;
  static constexpr int kLanes = 16;
  static constexpr std::int64_t kLeftWordBytes = kPanel * 4;

  static void pack_left(const Lanes& from, std::int64_t steps, std::int64_t lanes, std::byte* to) {
    pack_unit(from, steps, lanes, PairOrder::kChains, to);
  }

  template <int kRows, int kVecs>
  static inline void add(const std::byte* a, const std::byte* const (&b)[kVecs],
                         Sum (&sum)[kRows][kVecs]) {
    const auto* left = reinterpret_cast<const float*>(a);
    Sum right[kVecs];
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) right[v] = Sum::load(reinterpret_cast<const float*>(b[v]));
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const auto one = Sum::broadcast(left[i]);
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) {
        asm volatile("vdpbf16ps %2, %1, %0" : "+v"(sum[i][v].v) : "v"(one.v), "v"(right[v].v));
      }
    }
  }
};

}  // namespace
#endif

const Loops* avx512_bf16_loops() {
#if defined(__AVX512BF16__)
  static constexpr auto kLoops = tile_loops::make_loops<DotPair>();
  return &kLoops;
#else
  return nullptr;
#endif
}

}  // namespace moegrad::kernels::bf16
