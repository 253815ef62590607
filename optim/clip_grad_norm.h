// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/tensor/named_tensor.h"

namespace moegrad::optim {

/// Scales all gradients by min(1, max_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_.
/// Returns the norm before scaling, over all elements of all parameters:
///
///     (sum of |g|^p)^(1/p) for norm_type p = 1 or 2,   max |g| for infinity
///
/// The norm has the same bits for every number of ranks, mesh, sharding dimension and weight layout
/// (Note [Order-independent norm]).
///
/// Parameters without a gradient are skipped, so the norm is 0 before fully_shard has reduced any:
/// with State::set_requires_gradient_sync(false), until the micro-batch that turns it on. Shards
/// (Tensor::shard_spec()) contribute their elements and make the call collective over their group:
/// every rank must call it with the same parameters. Different parameters may have different
/// groups. Each distinct group of more than one rank costs two all-reduces, or one for infinity.
/// Replicas of a shard hold the same gradients and count once. Parameters that are whole while
/// others are sharded also count once. A part of a model, such as a stage of a pipeline, has the
/// norm of its own parameters: those of parts on other ranks are not in it.
///
/// As in torch, a NaN or infinity in any gradient gives a norm of NaN or infinity. The gradients
/// are then scaled by NaN or 0, so check the returned norm before step().
/// Error for a tensor that fully_shard or expert_parallel has replaced by a part.
/// ValueError unless max_norm >= 0 and norm_type is 1, 2 or infinity, and for more than 2^40
/// elements.
double clip_grad_norm(const NamedTensors& parameters, double max_norm, double norm_type = 2.0);

}  // namespace moegrad::optim
