// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

/// The transposes [E, N, K] of an NZ weight's matrices [E, K, N], as NZ: products read them in
/// place, with the same bits, where they would transpose tiles of the weight while packing them.
///
/// Made by the first call for bytes that serve again and found by those that follow (Note [A copy
/// kept with the bytes]); undefined where there is no copy and it would not pay. It takes as many
/// bytes as the weight, under the same MemoryTag. Making it counts one materialized_transposes and
/// the converted_bytes.
Tensor kept_transpose(const Tensor& weight);

}  // namespace moegrad::ops
