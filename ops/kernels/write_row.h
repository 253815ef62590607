// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "framework/tensor/dtype.h"

namespace moegrad::kernels {

/// y[i] = x[i], rounded if S is BFloat16.
template <class S, class T>
void round_row(const T* __restrict x, S* __restrict y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = S(x[i]);
}

/// y[i] = value(i) for i < n, rounded if S is BFloat16: block by block in a loop of its own, since
/// one loop over long values and the rounding has vectors of twice the length, for which the
/// registers do not suffice.
template <class S, class Value>
void write_row(S* __restrict y, std::int64_t n, const Value& value) {
  if constexpr (std::is_same_v<S, ArithmeticOf<S>>) {
    for (std::int64_t i = 0; i < n; ++i) y[i] = value(i);
  } else {
    constexpr std::int64_t kBlock = 256;
    float values[kBlock];
    for (std::int64_t begin = 0; begin < n; begin += kBlock) {
      const auto length = std::min(kBlock, n - begin);
      for (std::int64_t i = 0; i < length; ++i) values[i] = value(begin + i);
      round_row(values, y + begin, length);
    }
  }
}

}  // namespace moegrad::kernels
