// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "fsdp/state.h"

namespace moegrad::training {

/// When the gradients of the micro-batches that a rank runs in one step are communicated.
enum class Accumulation : std::uint8_t {
  kKeepUntilLast,  // they stay whole; after the last micro-batch their sum is reduced
  kReduceEach,     // they are reduced after each micro-batch
  kScatterEach,  // they are reduce-scattered after each micro-batch; after the last one the sum is
                 // all-reduced over the replicas (without replicas the same as kReduceEach)
};

/// The position of a rank in a grid of replicas and shards.
struct GridPlace {
  int replica = 0;
  int replicas = 1;
  int shard = 0;
  int shards = 1;

  /// The position on the mesh of the state's own parameters (the first mesh, if there are several).
  static GridPlace of(const fsdp::State& state);
  int ranks() const { return replicas * shards; }
};

/// Note [Who runs which micro-batch]
/// The gradient of a step is a sum over the micro-batches 0 .. M - 1 of all ranks, M a power of
/// two, along one tree (Note [Tree of successive terms]). fully_shard's sums have that shape, too
/// (Note [Where a gradient is summed]). But the leaf at which a micro-batch of a rank is added
/// depends on when gradients are communicated. So each rank takes the micro-batches that belong to
/// its leaves. Then any number of ranks that divides M gives the same bits. Micro-batch i of
/// m = M / R on a rank in replica p of P, shard s of S, R = P S, is
///
///     kKeepUntilLast  (p S + s) m + i      order (replica, shard, micro-batch)
///     kReduceEach     (i P + p) S + s      order (micro-batch, replica, shard)
///     kScatterEach    (p m + i) S + s      order (replica, micro-batch, shard)
///
/// Experts on a mesh of another shape agree with that if p S + s is the same for both; under
/// kScatterEach only if P is, too.
///
/// If R does not divide M, m is rounded up: every rank runs the same number, because every rank
/// must join every collective. Micro-batches whose index is M or more are kIdle: they are run with
/// weight zero. Then the step's gradient is the same sum in another order.
inline constexpr std::int64_t kIdle = -1;

/// The indices, from 0 .. M - 1, of the micro-batches that a rank runs, in its order; or kIdle.
std::vector<std::int64_t> owned_micro_batches(std::int64_t micro_batches, const GridPlace& place,
                                              Accumulation accumulation);

/// Sets the switches of `state` and all below for the next backward. `last`: it is the step's last.
void communicate_gradients(fsdp::State& state, Accumulation accumulation, bool last);

}  // namespace moegrad::training
