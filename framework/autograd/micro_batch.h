// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/runtime/error.h"
#include "framework/runtime/thread_state.h"

namespace moegrad {

/// While it lives, this thread computes the micro-batch `number` of those that one backward will go
/// through, or, of its tokens, the part `part`. ValueError unless 0 <= number < 64 and
/// 0 <= part < 64.
///
/// Note [Micro-batches in one backward]
/// A schedule may run the forwards of two micro-batches in turns, so that one computes while the
/// other waits for tokens from another rank. One backward then goes through both:
///
///     Tensor loss[2];
///     ... {
///       const MicroBatchGuard guard(j);
///       hidden[j] = layer(hidden[j]);
///     } ...
///     run_backward({loss[0], loss[1]}, {{}, {}}, false);
///
/// Each micro-batch's gradient has the bits that a backward of its own would give. Each Function
/// remembers the micro-batch that it was applied for, and a recomputation runs for the same. What
/// each micro-batch brings to a leaf is summed apart (Note [The sum of a gradient]), and the leaf's
/// hooks are called with each of these sums. Then these are added, and the result to grad(). So a
/// term of one micro-batch is never added to another's, nor to an older gradient. Under fully_shard
/// each sum is a leaf of the tree of Note [Where a gradient is summed], as if each micro-batch had
/// had a backward of its own and their gradients had been kept until the last.
///
/// Where a schedule cuts the tokens of one micro-batch into parts, the sum over them is the
/// micro-batch's.
///
/// Micro-batches may share leaves. What is computed from leaves for several of them at once, such
/// as the sum of two weights, has one gradient, and so loses the order.
class [[nodiscard]] MicroBatchGuard : public ThreadValueGuard<&ThreadState::micro_batch> {
 public:
  explicit MicroBatchGuard(int number, int part = 0) : ThreadValueGuard(checked(number, part)) {}

 private:
  static MicroBatchPart checked(int number, int part) {
    check<ValueError>(number >= 0 && number < 64, "micro-batch guard: number must be in [0, 64), ",
                      "got ", number);
    check<ValueError>(part >= 0 && part < 64, "micro-batch guard: part must be in [0, 64), got ",
                      part);
    return {.number = number, .part = part, .use = ThreadState::current().micro_batch.use};
  }
};

}  // namespace moegrad
