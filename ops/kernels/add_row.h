// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moegrad::kernels {

/// to[i] += from[i] for i < n; rows of bfloat16 are widened.
template <class From, class T>
void add_row(const From* __restrict from, T* __restrict to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += static_cast<T>(from[i]);
}

}  // namespace moegrad::kernels
