// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "framework/distributed/process_group.h"
#include "framework/tensor/tensor.h"
#include "fsdp/flat_layout.h"

namespace moegrad::fsdp {

/// What a reduce-scatter reads of a group's gradients: a buffer [world_size, slice] in parts.
///
/// Note [Gradients are reduced where they lie]
/// PyTorch copies the gradients of a group into one buffer, as its communication library wants it.
/// Here the rows that a rank holds of a parameter cut along dimension 0 lie one after the other in
/// the gradient, so the reduction reads them there, and a backward under fully_shard does not go
/// through all gradients once more. Copied are only gradients that are cut along
/// another dimension (a rank's part is strided), reduced in another dtype than they have, or held
/// by somebody else, a hook perhaps, who may write to them. What pads the last rows, and a gradient
/// that counts as zero, is read from one block of zeros.
struct ReductionInput {
  TensorList memory;  // what `parts` lie in
  ByteParts parts;
};

/// `layout` is that of `params`, without alignment; `gradients`, one per parameter, undefined where
/// it counts as zero.
ReductionInput make_reduction_input(const FlatLayout& layout, const std::vector<FlatParam>& params,
                                    TensorList gradients, Dtype dtype);

}  // namespace moegrad::fsdp
