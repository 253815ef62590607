// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace moegrad::kernels::bf16 {

/// Eight floats whose arithmetic is that of Note [bfloat16 products] in any mode but that which
/// flushes: slow, for where vectors cannot follow.
struct FlushedVector {
  static constexpr std::int64_t kLanes = 8;
  float v[kLanes];

  template <class F>
  static FlushedVector lanes(const F& f) {
    FlushedVector r;
    for (std::int64_t i = 0; i < kLanes; ++i) r.v[i] = f(i);
    return r;
  }
  static FlushedVector broadcast(float x) {
    return lanes([&](std::int64_t) { return x; });
  }
  static FlushedVector zero() { return broadcast(0); }
  static FlushedVector load(const float* p) {
    return lanes([&](std::int64_t i) { return p[i]; });
  }
  static FlushedVector load_upper(const float* p) {
    return lanes([&](std::int64_t i) { return of_bits(bits(p[i]) & 0xffff0000U); });
  }
  static FlushedVector load_lower(const float* p) {
    return lanes([&](std::int64_t i) { return of_bits(bits(p[i]) << 16); });
  }
  void store(float* p) const {
    for (std::int64_t i = 0; i < kLanes; ++i) p[i] = v[i];
  }
  friend FlushedVector operator+(const FlushedVector& a, const FlushedVector& b) {
    return lanes([&](std::int64_t i) { return flushed(flushed(a.v[i]) + flushed(b.v[i])); });
  }
  friend void accumulate(FlushedVector& sum, const FlushedVector& a, const FlushedVector& b) {
    for (std::int64_t i = 0; i < kLanes; ++i) {
      sum.v[i] = multiply_add(flushed(a.v[i]), flushed(b.v[i]), flushed(sum.v[i]));
    }
  }

 private:
  static std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }
  static float of_bits(std::uint32_t x) { return std::bit_cast<float>(x); }
  static float flushed(float x) { return std::fabs(x) < 0x1p-126F ? std::copysign(0.0F, x) : x; }
  // Below 2^-126 after rounding to 24 bits: the same numbers times 2^64 are rounded to as many.
  static float multiply_add(float a, float b, float c) {
    const float y = std::fma(a, b, c);
    if (!(std::fabs(y) <= 0x1p-126F)) return y;
    const float larger = std::fma(a * 0x1p64F, b, c * 0x1p64F);
    return std::fabs(larger) < 0x1p-62F ? std::copysign(0.0F, larger) : y;
  }
};

}  // namespace moegrad::kernels::bf16
