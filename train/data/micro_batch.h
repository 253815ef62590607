// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/tensor/documents.h"
#include "framework/tensor/tensor.h"

namespace moegrad::training {

/// Sequences packed one after the other. Each is a separate document.
struct MicroBatch {
  Tensor tokens;             // int64 [T]
  Tensor targets;            // int64 [T], the token after each token; -100: none
  Documents documents = {};  // one per sequence
};

/// What a rank runs only because every rank joins every collective.
inline MicroBatch no_tokens() {
  return {.tokens = Tensor::empty({0}, Dtype::kInt64),
          .targets = Tensor::empty({0}, Dtype::kInt64)};
}

}  // namespace moegrad::training
