// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/runtime/error.h"
#include "framework/runtime/thread_state.h"

namespace moegrad {

/// While it lives, what this thread computes is the use number `use` of the weights that it reads.
/// The innermost guard counts. ValueError unless 0 <= use < 64.
///
/// Note [Uses of a tied weight]
/// An embedding and an output head that share a weight stand at the two ends of a model, and under
/// a pipeline on two ranks. Each rank sums what its own use brings over the whole step, and the two
/// sums are added once, at the end. So that every other run has the same bits, each use of such
/// a weight has a sum of its own over micro-batches and ranks everywhere, and these are added last:
/// use 0 + use 1 + ... The embedding is use 0, which needs no guard; the head is use 1:
///
///     const WeightUseGuard use(1);
///     logits = head(hidden);
///
/// Each Function remembers the use that it was applied for, and a recomputation runs for the same.
/// A place where nobody sets a guard is use 0, and what a use brings more than once in a
/// micro-batch is added as Note [The sum of a gradient] says.
///
/// Until the end the terms stay apart: in a backward (PlacedSum), beside grad() (GradientUses), in
/// a GradientSum, and in the buffers that fully_shard reduces. A weight of one use pays nothing.
///
/// A hook of a leaf gets the whole gradient of each micro-batch. So where a leaf has hooks, its
/// uses are merged within the micro-batch, in order of arrival, and count as use 0.
class [[nodiscard]] WeightUseGuard : public ThreadValueGuard<&ThreadState::micro_batch> {
 public:
  explicit WeightUseGuard(int use) : ThreadValueGuard(with(use)) {}

 private:
  static MicroBatchPart with(int use) {
    check<ValueError>(use >= 0 && use < 64, "weight use guard: use must be in [0, 64), got ", use);
    auto place = ThreadState::current().micro_batch;
    place.use = use;
    return place;
  }
};

}  // namespace moegrad
