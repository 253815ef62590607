// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <vector>

#include "framework/runtime/parallel_for.h"
#include "framework/tensor/tensor.h"
#include "tests/bench/quantile.h"

namespace moegrad::bench {

/// Measures `body`, which must read and write `bytes` in all to make `elements`, in turn with a
/// plain copy that reads and writes as many, on the same threads. Counters: GB/s; "copy", that of
/// the copy; "of_copy", the time of the body over the copy's, as the median over the turns.
template <class Body>
void run_against_copy(benchmark::State& state, std::int64_t bytes, std::int64_t elements,
                      const Body& body) {
  using Clock = std::chrono::steady_clock;
  const auto half = bytes / 2;
  Tensor from = Tensor::zeros({half / 4}), to = Tensor::zeros({half / 4});
  const auto copy = [&] {
    constexpr std::int64_t kGrain = 1 << 14;
    const auto source = from.data<float>();
    const auto target = to.mutable_data<float>();
    parallel_for(from.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      std::memcpy(target.data() + begin, source.data() + begin,
                  static_cast<std::size_t>(end - begin) * sizeof(float));
    });
    benchmark::ClobberMemory();
  };
  const auto calls = std::max<std::int64_t>(1, 4'000'000 / bytes);
  const auto seconds = [calls](const auto& each) {
    const auto begin = Clock::now();
    for (std::int64_t i = 0; i < calls; ++i) each();
    return std::chrono::duration<double>(Clock::now() - begin).count() / static_cast<double>(calls);
  };
  std::vector<double> ratios, copies;
  for (auto _ : state) {
    copies.push_back(seconds(copy));
    const auto time = seconds(body);
    state.SetIterationTime(time);
    ratios.push_back(time / copies.back());
  }
  const auto rate = [&](double each) {
    return benchmark::Counter(each * static_cast<double>(state.iterations()),
                              benchmark::Counter::kIsRate);
  };
  state.counters["elements/s"] = rate(static_cast<double>(elements));
  state.counters["GB/s"] = rate(static_cast<double>(bytes) / 1e9);
  state.counters["copy"] = static_cast<double>(bytes) / median(copies) / 1e9;
  state.counters["of_copy"] = median(ratios);
}

}  // namespace moegrad::bench
