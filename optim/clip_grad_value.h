// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/tensor/named_tensor.h"

namespace moegrad::optim {

/// Clamps each element of each gradient to [-max_value, max_value], as
/// torch.nn.utils.clip_grad_value_. A NaN stays a NaN. Parameters without a gradient are skipped.
/// Shards are clamped like that part of the whole, without communication.
///
/// Error for a tensor that fully_shard has replaced by a shard; ValueError unless max_value >= 0.
void clip_grad_value(const NamedTensors& parameters, double max_value);

}  // namespace moegrad::optim
