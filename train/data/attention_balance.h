// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "train/data/length_grouped_sampler.h"

namespace moegrad::training {

/// How evenly the attention of some steps falls on the ranks: of each step, the work of the busiest
/// rank (max) against all ranks' mean.
struct AttentionBalance {
  double mean_ratio = 0;   // max / mean, over the steps
  double worst_ratio = 0;  // the largest of them
  double waiting = 0;      // sum over the steps of max - mean, in parts of the sum of means
};

/// Of the first `steps` steps, `work` per pack, where ranks take their micro-batches as under
/// kKeepUntilLast (Note [Who runs which micro-batch]).
AttentionBalance attention_balance(const LengthGroupedSampler& sampler,
                                   std::span<const std::int64_t> work, int ranks,
                                   std::int64_t steps);

}  // namespace moegrad::training
