// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "framework/distributed/link_model.h"
#include "framework/profile/slow_rank.h"
#include "framework/profile/timeline.h"
#include "models/causal_lm/config.h"
#include "nn/module.h"

namespace moegrad::tools {

struct TimelineOptions {
  models::CausalLMConfig config = models::CausalLMConfig::preset("tiny");
  int ranks = 2;
  std::int64_t steps = 6;  // recorded, after one that is not: it learns the order of the gathers
  std::int64_t batch = 4;  // sequences per rank and step
  std::int64_t sequence_length = 64;
  LinkModel link = {};
  int level = 1;         // of the spans
  bool prefetch = true;  // off: each group is gathered when it is needed
  int slow_rank = -1;    // which rank computes slow_by times as long as it would; -1: none
  double slow_by = 1.3;
  // Steps of a window in which the ranks are compared.
  std::int64_t window = 32;
};

/// Makes fully_shard gather the parameters of `root`'s modules in backward when they are needed,
/// not ahead of time.
void turn_backward_prefetch_off(nn::Module& root);

/// Trains a model of random weights on random tokens under fully_shard, and returns the timelines
/// of all ranks; where ranks are processes, on the process of rank 0 alone. When SlowRankFinder
/// names a rank during the run, on_slow_rank is called on rank 0 with the number of steps done.
std::vector<RankTimeline> run_timeline(
    const TimelineOptions& options,
    const std::function<void(std::int64_t, const SlowRank&)>& on_slow_rank = {});

}  // namespace moegrad::tools
