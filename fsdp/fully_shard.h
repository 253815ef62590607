// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "framework/distributed/device_mesh.h"
#include "fsdp/policy.h"
#include "fsdp/state.h"
#include "nn/module.h"

namespace moegrad::fsdp {

/// Shards the parameters of `module` over the mesh's "shard" axis, in place. Each rank keeps its
/// part, and hooks gather the whole around forward and backward. Call it bottom-up. One call makes
/// one group, with one all-gather and one reduce-scatter, from the parameters below `module` that
/// no earlier call has taken:
///
///     for (auto& layer : model.layers()) fully_shard(layer, mesh);
///     fully_shard(model, mesh);  // the rest: embedding, final norm, head
///
/// If the mesh also has a "replicate" axis (HSDP), an all-reduce then sums gradients over the
/// replicas. Stacked experts go to Policy::expert_mesh, if it is given; if that is another mesh,
/// they form a separate group.
///
/// A parameter with a ShardSpec, which another kind of parallelism has cut, is cut again, over the
/// ranks of the mesh, all of which must have the same part of it (Note [Placements]).
///
/// Make the optimizer afterwards, from model.named_parameters(). The step of an optimizer that was
/// made before is an Error. Gradients are sums over ranks: divide the loss by the global token
/// count. A parameter that no call takes and no policy ignores stays whole; step() refuses it if
/// other parameters are spread over ranks.
///
/// Every rank must pass the same parameter values. The first forward compares their checksums,
/// unless the shards have been written to by then. Its Error names the parameter and the ranks.
///
/// Buffers stay whole and keep their dtype. The first forward also compares those that are
/// persistent. Later on, code that changes them must do so alike on all ranks.
///
/// A module that was made on the meta device has no bytes yet. Shard it; then module.to_empty()
/// allocates only the shards, and nn::init_weights fills them with their part of the whole's
/// values.
///
/// If it throws, the module is unchanged:
///
///     Error         the module was sharded before; its parameters are partly on the meta device;
///                   a tied parameter belongs to another group or mesh; a parameter has hooks,
///                   which its shard would not run; parameters share their bytes without being one
///                   tensor
///     ShapeError    a parameter is a scalar; the dimension to cut does not exist; it is not 0 and
///                   is not divisible by the number of ranks
///     LayoutError   a parameter has gaps
///     DtypeError    the dtypes of a group are mixed; a dtype of the policy is not supported
///     ValueError    the mesh lacks the axes of the policy or has others; forward_prefetch < 0; the
///                   expert mesh leaves out ranks that expert parallelism has not divided over;
///                   the module is a ModuleList, which is never called: shard its elements
///
/// Reference: PyTorch FSDP2, torch.distributed.fsdp.fully_shard
State& fully_shard(nn::Module& module, const DeviceMesh& mesh, const Policy& policy = {});

/// Makes one group for several modules, such as an embedding and the head that shares its weight.
/// The group is gathered when the first of them runs and freed after the last. If forward runs only
/// some of them, it is freed when the outermost forward ends. Its name is that of its first module
/// in the model's pre-order. Such a group cannot be the root. ValueError for an empty list and for
/// modules that contain each other.
State& fully_shard(const std::vector<nn::Module*>& modules, const DeviceMesh& mesh,
                   const Policy& policy = {});

}  // namespace moegrad::fsdp
