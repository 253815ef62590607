// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "framework/distributed/device_mesh.h"
#include "fsdp/policy.h"
#include "fsdp/state.h"
#include "nn/module.h"

namespace moegrad::fsdp {

/// Shards the parameters of `module` over the mesh's "shard" axis, in place: each rank keeps its
/// part, and hooks gather the whole around forward and backward. Call it bottom-up; one call is one
/// group, that is one all-gather and one reduce-scatter, over the parameters below `module` that no
/// earlier call has taken:
///
///     for (auto& layer : model.layers()) fully_shard(layer, mesh);
///     fully_shard(model, mesh);  // the rest: embedding, final norm, head
///
/// On a mesh with a "replicate" axis as well (HSDP), gradients are then summed over the replicas by
/// an all-reduce. Stacked experts go to the mesh's expert view; where that differs, they are a
/// group of their own.
///
/// Make the optimizer afterwards, from model.named_parameters(): the step of one made before is an
/// Error. Every rank must hold the same parameter values; the first forward compares checksums of
/// them, unless the shards have been written to by then, and throws an Error that names the
/// parameter and the ranks. Gradients are sums over ranks: divide the loss by the global token
/// count. A parameter that no call takes and none ignores stays whole: step() refuses it beside
/// others that are spread. Error for a parameter with hooks, which its shard would not run, and for
/// parameters that share their bytes without being one tensor.
///
/// A module made on the meta device has no bytes yet: shard it, then module.to_empty() allocates
/// the shards alone, and nn::init_weights fills them, as it would have filled the whole.
///
/// Throws, and leaves the module as it was: Error if the module was sharded before, has another
/// extension, or its parameters are partly on the meta device, or if a tied parameter belongs to
/// another group or mesh, ShapeError for a scalar parameter and for a dimension that is not there
/// or, other than 0, does not divide, LayoutError for a parameter with gaps, DtypeError for a group
/// of mixed dtypes or a dtype that cannot be had, ValueError for a mesh without the axes asked for
/// or with others and for a negative forward_prefetch.
///
/// Reference: PyTorch FSDP2, torch.distributed.fsdp.fully_shard
State& fully_shard(nn::Module& module, const DeviceMesh& mesh, const Policy& policy = {});

/// One group for several modules, such as an embedding and the head that shares its weight: it is
/// gathered when the first of them runs and freed after the last. If forward runs only some, the
/// group is freed when the outermost forward ends. It is named by the first of its modules in the
/// model's pre-order. Such a group cannot be the root. ValueError for an empty list and for modules
/// that contain each other.
State& fully_shard(const std::vector<nn::Module*>& modules, const DeviceMesh& mesh,
                   const Policy& policy = {});

}  // namespace moegrad::fsdp
