// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "framework/tensor/tensor.h"

namespace moegrad::training {

/// Sequences packed one after the other. Each is a separate document.
struct MicroBatch {
  Tensor tokens;                              // int64 [T]
  Tensor targets;                             // int64 [T], the token after each token; -100: none
  std::vector<std::int64_t> cu_seqlens = {};  // [sequences + 1]
};

}  // namespace moegrad::training
