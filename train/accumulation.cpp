// SPDX-License-Identifier: Apache-2.0
#include "train/accumulation.h"

#include "framework/runtime/error.h"

namespace moegrad::training {

GridPlace GridPlace::of(const fsdp::State& state) {
  check(state.group() != nullptr, "micro-batches: the root has no parameters of its own");
  const auto& ranks = state.group()->ranks();
  GridPlace place = {.replicas = ranks.num_replicas(), .shards = ranks.num_shards()};
  if (ranks.replicas) place.replica = ranks.replicas->rank();
  if (ranks.shard) place.shard = ranks.shard->rank();
  return place;
}

std::vector<std::int64_t> owned_micro_batches(std::int64_t micro_batches, const GridPlace& place,
                                              Accumulation accumulation) {
  const auto each = (micro_batches + place.ranks() - 1) / place.ranks();
  const auto [p, replicas, s, shards] = place;
  const auto index_of = [&](std::int64_t i) {
    if (accumulation == Accumulation::kReduceEach) return (i * replicas + p) * shards + s;
    if (accumulation == Accumulation::kScatterEach) return (p * each + i) * shards + s;
    return (p * shards + s) * each + i;
  };
  std::vector<std::int64_t> owned;
  for (std::int64_t i = 0; i < each; ++i) {
    const auto index = index_of(i);
    owned.push_back(index < micro_batches ? index : kIdle);
  }
  return owned;
}

void communicate_gradients(fsdp::State& state, Accumulation accumulation, bool last) {
  state.set_requires_gradient_sync(last || accumulation != Accumulation::kKeepUntilLast);
  if (accumulation == Accumulation::kScatterEach) state.set_requires_all_reduce(last);
}

}  // namespace moegrad::training
