// SPDX-License-Identifier: Apache-2.0
#pragma once

// Tiles for operands in the order of chains, for one way to take the two steps of a word (Note [Two
// vector widths]).

#include <cstddef>
#include <cstdint>

#include "ops/kernels/bf16/pack.h"
#include "ops/kernels/simd.h"

namespace moegrad::kernels::bf16::tile_loops {

/// A unit of a left panel of floats: of each word the upper halves of sixteen rows, then the lower
/// ones.
template <class V>
void pack_widened(const Lanes& from, std::int64_t steps, std::int64_t lanes, std::byte* unit) {
  alignas(64) std::byte words[kUnitBytes];
  pack_unit(from, steps, lanes, PairOrder::kChains, words);
  const auto* word = reinterpret_cast<const float*>(words);
  auto* to = reinterpret_cast<float*>(unit);
  for (int i = 0; i < kWords; ++i, word += kPanel, to += 2 * kPanel) {
    for (int l = 0; l < kPanel; l += static_cast<int>(V::kLanes)) {
      V::load_upper(word + l).store(to + l);
      V::load_lower(word + l).store(to + kPanel + l);
    }
  }
}

/// Loops::round.
template <class V>
void round_sums(const float* from, BFloat16* to, std::int64_t n) {
  static_assert(V::kLanes == kPanel);
  std::uint16_t halves[kPanel];
  for (; n >= kPanel; n -= kPanel, from += kPanel, to += kPanel) {
    V::load(from).store_rounded(&to->bits);
  }
  if (n == 0) return;
  V::load(from).store_rounded(halves);
  for (std::int64_t i = 0; i < n; ++i) to[i].bits = halves[i];
}

/// Two steps of a chain by FMA: A is widened when it is packed, B here.
template <class V>
struct FmaPair {
  using Sum = V;
  static constexpr int kLanes = V::kLanes;
  static constexpr std::int64_t kLeftWordBytes = 2 * kPanel * 4;  // sixteen floats of each step

  static void pack_left(const Lanes& from, std::int64_t steps, std::int64_t lanes, std::byte* to) {
    pack_widened<V>(from, steps, lanes, to);
  }

  template <int kRows, int kVecs>
  static inline void add(const std::byte* a, const std::byte* const (&b)[kVecs],
                         V (&sum)[kRows][kVecs]) {
    const auto* left = reinterpret_cast<const float*>(a);
    step<kRows, kVecs>(left, b, sum, [](const float* p) { return V::load_upper(p); });
    step<kRows, kVecs>(left + kPanel, b, sum, [](const float* p) { return V::load_lower(p); });
  }

 private:
  template <int kRows, int kVecs, class Load>
  static inline void step(const float* left, const std::byte* const (&b)[kVecs],
                          V (&sum)[kRows][kVecs], const Load& load) {
    V right[kVecs];
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) right[v] = load(reinterpret_cast<const float*>(b[v]));
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const auto one = V::broadcast(left[i]);
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) accumulate(sum[i][v], one, right[v]);
    }
  }
};

/// A Tile. It is a call, which the compiler does not move past a change of the CPU's mode.
template <class Pair, int kRows, int kPanels>
[[gnu::noinline]] void multiply(const std::byte* a, const std::byte* b, std::int64_t b_stride,
                                std::int64_t units, std::int64_t, float* c, std::int64_t ldc,
                                bool adds) {
  using V = typename Pair::Sum;
  constexpr int kLanes = Pair::kLanes, kPerPanel = static_cast<int>(kPanel) / kLanes,
                kVecs = kPanels * kPerPanel;
  // In memory, for the sums of a chain fill the registers.
  alignas(64) float even[kRows][kVecs][kLanes] = {}, total[kRows][kVecs][kLanes] = {};
  const std::byte* at[kVecs];
#pragma GCC unroll 8
  for (int v = 0; v < kVecs; ++v) {
    at[v] = b + v / kPerPanel * b_stride + v % kPerPanel * kLanes * 4;
  }
#pragma GCC unroll 1
  for (std::int64_t chain = 0; chain < 2 * units; ++chain) {
    V sum[kRows][kVecs];
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) sum[i][v] = V::zero();
    }
    for (int word = 0; word < kWords / 2; ++word) {
      Pair::template add<kRows, kVecs>(a, at, sum);
      a += Pair::kLeftWordBytes;
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) at[v] += kPanel * 4;
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) {
        if (chain % 2 == 0) {
          sum[i][v].store(even[i][v]);
        } else {
          ((V::load(even[i][v]) + sum[i][v]) + V::load(total[i][v])).store(total[i][v]);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      float* const to = c + i * ldc + v * kLanes;
      const auto sum = V::load(total[i][v]);
      (adds ? V::load(to) + sum : sum).store(to);
    }
  }
}

}  // namespace moegrad::kernels::bf16::tile_loops
