// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "framework/distributed/link_model.h"
#include "framework/runtime/slow_rank.h"
#include "framework/runtime/span.h"
#include "framework/tensor/arena.h"
#include "models/qwen3_moe_config.h"
#include "nn/module.h"

namespace moegrad::examples {

struct TimelineOptions {
  models::Qwen3MoeConfig config = models::Qwen3MoeConfig::preset("tiny");
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

/// What one rank recorded; nothing of it is dropped, however long the run.
struct RankTimeline {
  std::vector<Span> spans = {};
  std::vector<SpanClock::time_point> step_begins = {};    // and the end of the last step
  std::array<std::int64_t, kMemoryTags> peak_bytes = {};  // of each tag by itself
  std::int64_t peak_total = 0;
};

/// Makes every fully_shard of `root`'s modules gather in backward when it needs to, not ahead.
void turn_backward_prefetch_off(nn::Module& root);

/// Trains a model of random weights on random tokens under fully_shard, and returns the timelines
/// of all ranks. on_slow_rank is called on rank 0 while the run goes on, with the number of steps
/// done, when SlowRankFinder names a rank.
std::vector<RankTimeline> run_timeline(
    const TimelineOptions& options,
    const std::function<void(std::int64_t, const SlowRank&)>& on_slow_rank = {});

}  // namespace moegrad::examples
