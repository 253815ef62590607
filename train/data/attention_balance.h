// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "train/data/length_grouped_sampler.h"

namespace moegrad::training {

/// How evenly the attention of some steps is distributed over the ranks. In each step, the work of
/// the busiest rank (max) is compared with the mean over all ranks.
struct AttentionBalance {
  double mean_ratio = 0;   // max / mean, over the steps
  double worst_ratio = 0;  // the largest max / mean
  double waiting = 0;      // sum over the steps of max - mean, divided by the sum of means
};

/// The balance of the first `steps` steps; `work` is per pack. Ranks take their micro-batches as
/// under kKeepUntilLast (Note [Who runs which micro-batch]).
AttentionBalance attention_balance(const LengthGroupedSampler& sampler,
                                   std::span<const std::int64_t> work, int ranks,
                                   std::int64_t steps);

}  // namespace moegrad::training
