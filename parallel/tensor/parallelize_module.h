// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/distributed/device_mesh.h"
#include "nn/module.h"
#include "parallel/tensor/styles.h"

namespace moegrad::parallel {

/// Divides the modules below `module` that `plan` names over the R ranks of `mesh`, which has one
/// axis, as torch.distributed.tensor.parallel.parallelize_module:
///
///     const auto meshes = make_meshes(group, {.dp_shard = -1, .tp = 2});
///     parallel::parallelize_module(mlp, meshes.dense["tp"],
///                                  {{"gate_proj", parallel::ColwiseParallel{}},
///                                   {"up_proj", parallel::ColwiseParallel{}},
///                                   {"down_proj", parallel::RowwiseParallel{}}});
///
/// The ranks have the same tokens and share the work on them. What a rank computes with its part of
/// a weight is a part, or a summand, of what one rank would compute (Note [One objective on all
/// ranks]); the styles say where these are gathered or added. Each rank then has the same
/// objective, calls backward on it, and has its part of the gradients. Nothing is left to be added
/// over the ranks of `mesh`. Call it before fully_shard, which cuts each part again over the other
/// ranks of the dense mesh.
///
/// Every parameter gets a ShardSpec: its part, or that all ranks have it alike, which is what the
/// others are: their gradients are alike, too, if each module on whose input or weights ranks
/// differ is in the plan. One that is missing there, such as a norm of heads, would silently train
/// with a part of its gradient on each rank: check_replicated_gradients() finds it.
///
/// Note [Tensor parallelism and the canonical sum]
/// Losses, gradients and parameters have the bits of one rank where each sum that is cut is cut
/// into subtrees (Note [Sums by halving]): of R ranks, a power of two, each has a multiple of 16
/// terms, and twice that are more than 128 (in bfloat16 of 32 and more than 256). What is cut: `in`
/// of a RowwiseParallel layer; `out` of a ColwiseParallel one, in its input's gradient; the
/// vocabulary; the rows of what is SequenceParallel. Heads may be any number. The gradient of a
/// block that several ranks have (ColwiseParallel::blocks) has other bits. inexact_sums() lists
/// what does not have them.
///
/// Checkpoints and files in Hugging Face's form fit any R. A tied parameter must be cut alike in
/// all places. The initial values must be the same on all ranks, or parameters be on the meta
/// device.
///
/// If it throws, nothing has changed:
///
///     ValueError    the mesh has several axes; a path matches nothing, or is in the plan twice; a
///                   style does not fit its module, or a layout its style; the ranks do not divide
///                   what is cut, nor blocks the ranks; a tied parameter would be cut in two
///                   ways, or in one of its places
///     Error         a parameter has been sharded or divided before, or has hooks; the ranks have
///                   other plans or other values
///
/// Method: Shoeybi et al., "Megatron-LM", 2019, https://arxiv.org/abs/1909.08053; Korthikanti et
/// al., "Reducing Activation Recomputation", 2022, https://arxiv.org/abs/2205.05198, for sequence
/// parallelism.
void parallelize_module(nn::Module& module, const DeviceMesh& mesh, const ParallelPlan& plan);

}  // namespace moegrad::parallel
