// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/tensor/named_tensor.h"

namespace moegrad::optim {

/// Note [Order-independent norm]
/// The sum of squares is exact up to a fixed rounding of each term, so it does not depend on the
/// order of the terms: the norm has the same bits for every sharding, weight orientation, number of
/// threads and number of ranks. With m = max |g| over all elements of all ranks and s the power of
/// two above m, each term x = (g / s)^2 < 1 is split by pre-rounding into
///
///     a = (x + C1) - C1,   b = (x - a + C2) - C2,   c = (x - a - b + C3) - C3
///
/// multiples of 2^-22, 2^-44 and 2^-66, where C = 1.5 * 2^(52 - bits) makes the addition round
/// there. |a| <= 1 and |b|, |c| <= half the quantum before, so sums over up to 2^30 elements stay
/// below 2^53 quanta: they are exact in float64, in any order, and so is an all-reduce of them.
/// What is dropped, at most 2^-67 per term, depends on the term alone. Then
/// norm = s sqrt(a + (b + c)).
///
/// Reference: Demmel & Nguyen, "Parallel reproducible summation", 2015.

/// Scales all gradients by min(1, max_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_,
/// and returns their total L2 norm before that (Note [Order-independent norm]).
///
/// Parameters without a gradient are passed over. Shards (Tensor::shard_spec()) contribute their
/// elements and make the call collective over their group: every rank must make it with the same
/// parameters. Parameters that are whole while others are sharded are replicas and count once. With
/// no parameter sharded over a group there is no communication.
///
/// As in torch, a NaN or infinity in any gradient gives a norm of NaN or infinity, and gradients
/// are scaled by NaN or 0 all the same: check the returned norm before step().
/// ValueError unless max_norm >= 0, for shards over different groups, and for more than 2^30
/// elements.
double clip_grad_norm(const NamedTensors& parameters, double max_norm);

}  // namespace moegrad::optim
