// SPDX-License-Identifier: Apache-2.0
#include "train/logs/peak_flops.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "framework/distributed/collectives.h"
#include "framework/runtime/parallel_for.h"
#include "framework/runtime/rank_context.h"
#include "ops/kernels/fma_chains.h"

namespace moegrad::training {

double measure_peak_flops() {
  using Clock = std::chrono::steady_clock;
  constexpr int kRuns = 7;
  constexpr std::int64_t kSteps = 600'000;
  auto& context = RankContext::current();
  auto& group = *context.group();
  const int threads = context.pool().threads();
  double shortest = 0;
  for (int run = 0; run < kRuns; ++run) {
    // All ranks run between two barriers: where cores are shared, none is counted twice.
    group.barrier()->wait();
    const auto begin = Clock::now();
    parallel_for(threads, 1, [](std::int64_t, std::int64_t) {
      volatile float memory = 0.5F;
      kernels::run_fma_chains(&memory, kSteps);
    });
    group.barrier()->wait();
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    shortest = run == 0 ? seconds : std::min(shortest, seconds);
  }
  std::vector<double> peak = {context.rank() == 0 ? 1 / shortest : 0,
                              kernels::fma_chain_flops(kSteps) * threads};
  all_reduce(group, std::span(peak));
  return peak[0] * peak[1];
}

}  // namespace moegrad::training
