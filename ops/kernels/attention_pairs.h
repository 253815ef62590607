// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "framework/runtime/random.h"

namespace moegrad::kernels {

/// Which keys j of its document a query at position t sees, and which of their weights are dropped.
struct AttentionPairs {
  bool causal;          // only j <= t
  std::int64_t window;  // only j > t - window; at most the number of tokens T, which hides nothing
  /// bool [T, T] by query and key, for each head if `allowed_head_step` is T * T, or for all if it
  /// is 0. Null: true everywhere.
  const bool* allowed = nullptr;
  std::int64_t allowed_head_step = 0;
  /// One for each query head. Null: nothing is dropped.
  const Random* random_of_head = nullptr;
  const std::int64_t* ids = nullptr;  // [T]
  double dropout = 0;                 // the probability
};

}  // namespace moegrad::kernels
