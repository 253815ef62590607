// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/distributed/device_mesh.h"
#include "nn/module.h"

namespace moegrad::parallel {

/// Divides the experts of each mixture layer (nn::MoE) below `module`, itself included, over the S
/// ranks of the mesh's axis "ep". Rank r keeps experts [r E / S, (r + 1) E / S) of each layer, and
/// tokens travel to the experts that they choose, and back (Note [Tokens that travel]). Returns the
/// number of these layers. Call it before fully_shard, which cuts each rank's part again, over the
/// ranks that have the same experts:
///
///     const auto meshes = make_meshes(group, {.dp_shard = -1, .ep = 4});
///     parallel::expert_parallel(model, meshes.expert);
///     const fsdp::Policy policy = {.expert_mesh = meshes.expert_fsdp()};
///     for (auto& layer : model.layers()) fsdp::fully_shard(layer, meshes.fsdp(), policy);
///     fsdp::fully_shard(model, meshes.fsdp(), policy);
///
/// Note [Expert parallelism and the canonical sum]
/// Losses, gradients and parameters have the bits of a run without expert parallelism, if the
/// numbers of ranks, of ranks per expert group and of micro-batches are powers of two and the ranks
/// divide the micro-batches. An expert's gradient is a sum over the micro-batches of all ranks. The
/// owner adds those that ran at the same time in its expert group (Note [The sum of a gradient]),
/// and fully_shard adds the rest. So the gradients of all parameters must be reduced after each
/// micro-batch: then micro-batch i of the rank in replica p of P and shard s of N is leaf
/// (i P + p) N + s of the one tree, and an expert group, whose ranks are neighbours, is a subtree.
/// set_requires_gradient_sync stays on; under a StepPlan use Accumulation::kReduceEach or, with
/// replicas, kScatterEach. The axis ep must be the innermost part of dp_shard, as in make_meshes().
///
/// Where the axis has as many neighbours on each of several hosts (DeviceMesh::unflatten_by_host),
/// at least 4, and has at least 16 ranks, tokens travel in two levels (Note [Two levels of an
/// exchange]).
///
/// The experts' modules must have no parameters but stacked ones, and be able to run with E / S of
/// the experts, as nn::GroupedExperts does. A module of your own must multiply the rows of each
/// source apart (ops::RowGroups::sources), or the gradient has other last bits. Checkpoints and
/// files in Hugging Face's form fit any S. If the axis has one rank, nothing is divided. Parameters
/// on the meta device must be so on all ranks.
///
/// If it throws, nothing has changed:
///
///     ValueError    the mesh has no axis "ep", or "shard" or "replicate" after it; there is no
///                   mixture layer; the ranks do not divide the experts; the experts have a
///                   parameter that is not stacked
///     Error         the experts have been sharded or divided before; a parameter has hooks; the
///                   parts exceed the arena's budget; the ranks have experts of different values
///
/// Make the optimizer afterwards. The step of one that was made before is an Error.
///
/// Method: Lepikhin et al., "GShard", 2020, https://arxiv.org/abs/2006.16668
///
/// Where the ranks of axis ep are those of a tensor-parallel group, each has a part of the tokens
/// of one micro-batch: `one_micro_batch`. What they bring an expert is added within the micro-batch
/// then, and gradients may be kept until the last one.
int expert_parallel(nn::Module& module, const DeviceMesh& mesh, bool one_micro_batch = false);

}  // namespace moegrad::parallel
