// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "framework/distributed/process_group.h"
#include "framework/tensor/tensor.h"
#include "fsdp/flat_layout.h"

namespace moegrad::fsdp {

/// The input of a reduce-scatter of a group's gradients: a buffer [world_size, slice] in parts.
///
/// Note [Gradients are reduced where they lie]
/// PyTorch copies the gradients of a group into one buffer, because its communication library needs
/// that. Here the reduction reads most gradients in place: if a parameter is cut along dimension 0,
/// the rows of one rank are contiguous in its gradient. So a backward under fully_shard does not
/// pass over all gradients once more.
///
/// A gradient is copied only if it is cut along another dimension (the part of a rank is strided),
/// if it is reduced in another dtype than its own, or if other code, such as a hook, also holds it
/// and may write to it. The padding of the last rows and gradients that count as zero are read from
/// one block of zeros.
struct ReductionInput {
  TensorList memory;  // the memory that `parts` point into
  ByteParts parts;
};

/// `layout` is the layout of `params` without alignment. There is one gradient per parameter; an
/// undefined one counts as zero.
ReductionInput make_reduction_input(const FlatLayout& layout, const std::vector<FlatParam>& params,
                                    TensorList gradients, Dtype dtype);

}  // namespace moegrad::fsdp
