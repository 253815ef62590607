// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/fma_peak.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "framework/runtime/parallel_for.h"
#include "framework/runtime/rank_context.h"
#include "ops/kernels/fma_chains.h"
#include "tests/bench/quantile.h"

namespace moegrad::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kSteps = 1'500'000;  // about 5 ms

}  // namespace

double fma_peak(int threads, double seconds) {
  const auto runs = std::max<std::size_t>(3, static_cast<std::size_t>(seconds / 0.005));
  std::vector<double> rates(runs);
  Clock::time_point begin;
  std::size_t run = 0;
  // Called by the last thread to arrive, between the runs.
  std::barrier round(threads, [&]() noexcept {
    const auto now = Clock::now();
    if (run > 0) {
      rates[run - 1] = kernels::fma_chain_flops(kSteps) * threads /
                       std::chrono::duration<double>(now - begin).count();
    }
    begin = now;
    ++run;
  });
  std::vector<std::jthread> team;
  for (int i = 0; i < threads; ++i) {
    team.emplace_back([&, state = ThreadState::capture()] {
      const ThreadStateGuard guard(state);
      volatile float memory = 0.5F;
      round.arrive_and_wait();
      for (std::size_t j = 0; j < runs; ++j) {
        kernels::run_fma_chains(&memory, kSteps);
        round.arrive_and_wait();
      }
    });
  }
  team.clear();
  return median(rates);
}

double fma_rate() {
  const int threads = RankContext::current().pool().threads();
  const auto begin = Clock::now();
  parallel_for(threads, 1, [](std::int64_t, std::int64_t) {
    volatile float memory = 0.5F;
    kernels::run_fma_chains(&memory, kSteps / 25);
  });
  return kernels::fma_chain_flops(kSteps / 25) * threads /
         std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace moegrad::bench
