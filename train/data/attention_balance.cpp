// SPDX-License-Identifier: Apache-2.0
#include "train/data/attention_balance.h"

#include <algorithm>
#include <vector>

#include "fsdp/step_plan.h"

namespace moegrad::training {

AttentionBalance attention_balance(const LengthGroupedSampler& sampler,
                                   std::span<const std::int64_t> work, int ranks,
                                   std::int64_t steps) {
  AttentionBalance balance;
  double means = 0;
  for (std::int64_t step = 0; step < steps; ++step) {
    const auto packs = sampler.packs_of_step(step);
    std::vector<double> loads;
    for (int rank = 0; rank < ranks; ++rank) {
      double load = 0;
      for (const auto& turn :
           fsdp::turns_of(sampler.micro_batches(), {.shard = rank, .shards = ranks},
                          fsdp::Accumulation::kKeepUntilLast)) {
        if (turn.idle) continue;
        load += static_cast<double>(
            work[static_cast<std::size_t>(packs[static_cast<std::size_t>(turn.index)])]);
      }
      loads.push_back(load);
    }
    double mean = 0;
    for (const auto load : loads) mean += load / ranks;
    const double max = *std::ranges::max_element(loads);
    balance.mean_ratio += max / mean / static_cast<double>(steps);
    balance.worst_ratio = std::max(balance.worst_ratio, max / mean);
    balance.waiting += max - mean;
    means += mean;
  }
  balance.waiting /= means;
  return balance;
}

}  // namespace moegrad::training
