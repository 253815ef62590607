// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/distributed/device_mesh.h"
#include "fsdp/policy.h"
#include "fsdp/state.h"
#include "nn/module.h"

namespace moegrad::fsdp {

/// Shards the parameters of `module` over the mesh's "shard" axis, in place: each rank keeps its
/// rows, and hooks gather the whole around forward and backward. Call it bottom-up; one call is one
/// group, that is one all-gather and one reduce-scatter, over the parameters below `module` that no
/// earlier call has taken:
///
///     for (auto& layer : model.layers()) fully_shard(*layer, mesh);
///     fully_shard(model, mesh);  // the rest: embedding, final norm, head
///
/// Make the optimizer afterwards, from model.named_parameters(). Every rank must hold the same
/// parameter values. Gradients are sums over ranks: divide the loss by the global token count.
///
/// Throws Error if the module was sharded before or a tied parameter belongs to another group,
/// ShapeError for a scalar parameter, DtypeError for a group of mixed dtypes.
///
/// Reference: PyTorch FSDP2, torch.distributed.fsdp.fully_shard
State& fully_shard(nn::Module& module, const DeviceMesh& mesh, const Policy& policy = {});

}  // namespace moegrad::fsdp
