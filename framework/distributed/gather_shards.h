// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/distributed/shard_spec.h"
#include "framework/tensor/tensor.h"

namespace moegrad {

// Whole tensors from shards, and back. Both functions are collective over the ranks that hold the
// tensor: those of all groups of spec.placements. The root is the first rank of each group.
//
// A tensor that is divided more than once is put together from the inside out, division by
// division, and is divided from the outside in.
//
// ShapeError unless the shard has the shape of its spec, LayoutError unless it is contiguous, Error
// unless the parts of the ranks, in their order, form the whole tensor.

/// The tensor of spec.global_shape, on the root. On the other ranks the result is undefined; they
/// keep nothing beyond their own shard. Only the first replica takes part. If the root holds the
/// whole tensor, the result is `shard` itself without graph. The root needs memory for the whole
/// tensor, and twice that if the outermost dimension that is cut is not 0. The first rank of an
/// inner group needs memory for the part that the group shares.
Tensor gather_shards(const Tensor& shard, const ShardSpec& spec);

/// The tensor of spec.global_shape, on every rank: gather_shards(), and its result is sent on from
/// the root. Every rank needs memory for the whole tensor. Without other ranks the result is
/// `shard` itself without graph.
Tensor all_gather_shards(const Tensor& shard, const ShardSpec& spec);

/// Fills `shard` on every rank from the root's `whole`. `whole` has spec.global_shape (else
/// ShapeError); it may be strided and of another dtype. Other ranks' `whole` is not read. The root
/// needs memory for the whole tensor once more, the first rank of an inner group for the part that
/// the group shares, and once more for its parts.
void scatter_shards(const Tensor& whole, Tensor& shard, const ShardSpec& spec);

}  // namespace moegrad
