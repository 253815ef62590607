// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "framework/tensor/shape.h"

namespace moegrad::nn {

/// How the stored bytes of a parameter map to Hugging Face's tensors. All code that needs to know
/// (copy-out, loading, saving) reads this. Nothing is decided by size, position or environment.
struct ParameterLayout {
  enum class Role : std::uint8_t {
    kDense,         // one Hugging Face tensor, as it is: norms, embeddings, router
    kLinear,        // one Hugging Face tensor, as it is: the weight of a linear layer
    kExpertGateUp,  // per expert gate_proj and up_proj side by side: 2I columns (or rows)
    kExpertDown,    // per expert down_proj
  };

  Role role = Role::kDense;
  /// Stacked experts: [E, in, out] if in_first, else [E, out, in]; stored flattened to two
  /// dimensions, [E*in, out] or [E*out, in]. Empty for dense parameters.
  Shape stacked = {};
  /// in-features before out-features ("pre-transposed"): the matmul reads the weight as stored.
  bool in_first = false;
};

}  // namespace moegrad::nn
