// SPDX-License-Identifier: Apache-2.0
#pragma once

// What Note [bfloat16 products] promises, as scalar loops that set no mode of the CPU: the rule is
// written down once more here.

#include <cmath>
#include <cstdint>

#include "tests/ops/matmul_reference.h"

namespace moegrad::test {

/// A denormal becomes a zero of its sign.
inline float flushed(float x) { return std::fabs(x) < 0x1p-126F ? std::copysign(0.0F, x) : x; }

/// a * b + c of flushed numbers, rounded once, and flushed if it is below 2^-126 after rounding to
/// 24 bits: so a number times 2^64 decides.
inline float flushed_fma(float a, float b, float c) {
  a = flushed(a), b = flushed(b), c = flushed(c);
  const float y = std::fma(a, b, c);
  if (!(std::fabs(y) <= 0x1p-126F)) return y;
  const float scaled = std::fma(a * 0x1p64F, b, c * 0x1p64F);
  return std::fabs(scaled) < 0x1p-62F ? std::copysign(0.0F, scaled) : y;
}
inline float flushed_sum(float a, float b) { return flushed_fma(a, 1.0F, b); }

struct Flushed {
  float value;
  friend Flushed operator+(Flushed x, Flushed y) { return {flushed_sum(x.value, y.value)}; }
};

/// The sum over p < k of a(p) * b(p), which are floats that bfloat16 has.
template <class A, class B>
float bf16_product(std::int64_t k, const A& a, const B& b) {
  constexpr std::int64_t kUnit = 32;
  const auto part = [&](std::int64_t begin, std::int64_t steps) {
    float y = 0;
    for (auto unit = begin; unit < begin + steps; unit += kUnit) {
      float chains[2] = {0, 0};
      for (auto p = unit; p < unit + kUnit; ++p) {
        const bool exists = p < begin + steps;
        float& chain = chains[(p - unit) % 2];
        chain = flushed_fma(exists ? a(p) : 0.0F, exists ? b(p) : 0.0F, chain);
      }
      y = flushed_sum(flushed_sum(chains[0], chains[1]), y);
    }
    return Flushed{y};
  };
  return halved(0, k, 256, kUnit, part).value;
}

}  // namespace moegrad::test
