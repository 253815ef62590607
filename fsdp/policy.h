// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "framework/tensor/dtype.h"

namespace moegrad::fsdp {

/// What travels narrow. Values are rounded at every world size, one included, so that the same
/// numbers come out whatever the rank count. Arithmetic stays in the parameter's own dtype.
struct MixedPrecision {
  std::optional<Dtype> param_dtype =
      std::nullopt;  // of the gathered parameters on the wire: bfloat16 or none
  std::optional<Dtype> reduce_dtype =
      std::nullopt;  // of gradients in the reduction: bfloat16 or none
};

/// How one fully_shard call treats its module.
struct Policy {
  /// Whether the gathered parameters are freed between forward and backward. By default yes, but
  /// for the root, whose parameters are needed again at once.
  std::optional<bool> reshard_after_forward = std::nullopt;
  /// The group holds the module's linear weights alone; norms and the router fall to the root
  /// group. What remains starts at multiples of 512 bytes (one 16x16 bfloat16 fractal) in the
  /// gather buffer, at any world size.
  bool linear_only_shard = false;
  MixedPrecision mixed_precision = {};
  /// How many groups ahead to gather during forward, in the order recorded in the last one.
  int forward_prefetch = 1;
};

}  // namespace moegrad::fsdp
