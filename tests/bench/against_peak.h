// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/bench/fma_peak.h"

namespace moegrad::bench {

/// Measures `body`, which takes `flops` operations, in turn with the FMA peak. Counters: GFLOP/s;
/// "peak", the share of the peak as the median over the turns; "peak_p90", the share that one turn
/// in ten exceeds, which neighbours on the machine disturb less.
template <class Body>
void run_against_peak(benchmark::State& state, double flops, const Body& body) {
  const auto calls = std::max<std::int64_t>(1, static_cast<std::int64_t>(2e7 / flops));
  const double work = flops * static_cast<double>(calls);
  std::vector<double> shares;
  for (auto _ : state) {
    const double peak = fma_rate();
    const auto begin = std::chrono::steady_clock::now();
    for (std::int64_t i = 0; i < calls; ++i) body();
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    state.SetIterationTime(time.count() / static_cast<double>(calls));
    shares.push_back(work / time.count() / peak);
  }
  std::ranges::sort(shares);
  const auto quantile = [&](double q) {
    return shares[static_cast<std::size_t>(q * static_cast<double>(shares.size() - 1))];
  };
  state.counters["GFLOP/s"] = benchmark::Counter(
      flops * static_cast<double>(state.iterations()) / 1e9, benchmark::Counter::kIsRate);
  state.counters["peak"] = quantile(0.5);
  state.counters["peak_p90"] = quantile(0.9);
}

}  // namespace moegrad::bench
