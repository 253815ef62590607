// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/distributed/shard_spec.h"
#include "framework/tensor/tensor.h"

namespace moegrad {

// Whole tensors out of shards, and back. Both are collective over the ranks that hold the tensor,
// spec.group x spec.replicas; its root is the first rank of the first replica.
//
// ShapeError unless the shard has the shape that its spec says, LayoutError unless it is
// contiguous, Error unless those of all ranks, in the order of the ranks, are the whole tensor.

/// The tensor of spec.global_shape, on the root; undefined on the others, which keep nothing beyond
/// their own shard. Replicas but the first take no part. Where the root holds all of it, `shard`
/// itself without graph. The root needs room for the whole tensor, for dimensions but 0 twice.
Tensor gather_shards(const Tensor& shard, const ShardSpec& spec);

/// Fills `shard` on every rank from the root's `whole`, which is of spec.global_shape (else
/// ShapeError) and may be strided and of another dtype. Other ranks' `whole` is not read. The root
/// needs room for the whole tensor once more.
void scatter_shards(const Tensor& whole, Tensor& shard, const ShardSpec& spec);

}  // namespace moegrad
