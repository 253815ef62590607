// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/bench/fma_peak.h"
#include "tests/bench/quantile.h"

namespace moegrad::bench {

/// Measures `body`, which takes `flops` operations, in turn with the FMA peak and with `others`,
/// which do the same. Counters: GFLOP/s; "peak", the share of the peak as the median over the
/// turns; "peak_p90", the share that one turn in ten exceeds, which neighbours on the machine
/// disturb less; the same median for each of the others; and "vs_best", the first over the largest
/// of those.
inline void run_against_peak(
    benchmark::State& state, double flops, const std::function<void()>& body,
    const std::vector<std::pair<std::string, std::function<void()>>>& others = {}) {
  const auto calls = std::max<std::int64_t>(1, static_cast<std::int64_t>(2e7 / flops));
  const double work = flops * static_cast<double>(calls);
  const auto seconds = [&](const std::function<void()>& run) {
    const auto begin = std::chrono::steady_clock::now();
    for (std::int64_t i = 0; i < calls; ++i) run();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  std::vector<std::vector<double>> shares(1 + others.size());
  for (auto _ : state) {
    const double peak = fma_rate();
    const double time = seconds(body);
    state.SetIterationTime(time / static_cast<double>(calls));
    shares[0].push_back(work / time / peak);
    for (std::size_t i = 0; i < others.size(); ++i) {
      shares[i + 1].push_back(work / seconds(others[i].second) / peak);
    }
  }
  const double own = median(shares[0]);
  state.counters["GFLOP/s"] = benchmark::Counter(
      flops * static_cast<double>(state.iterations()) / 1e9, benchmark::Counter::kIsRate);
  state.counters["peak"] = own;
  state.counters["peak_p90"] = quantile(shares[0], 0.9);
  double best = 0;
  for (std::size_t i = 0; i < others.size(); ++i) {
    const double share = median(shares[i + 1]);
    state.counters[others[i].first] = share;
    best = std::max(best, share);
  }
  if (!others.empty()) state.counters["vs_best"] = own / best;
}

}  // namespace moegrad::bench
