// SPDX-License-Identifier: Apache-2.0

// What it costs to get a gathered expert weight into FRACTAL_NZ: slice_to_nz while copying (the
// copy-out of a gather), against a plain copy of as many bytes and against copying first and
// converting then.
//
//     build/release/tests/bench_slice_to_nz [--benchmark_...]
//
// "copies" is the time in plain copies of as many bytes, measured in turn. One thread, weights
// [experts, 512, 768], float32 from float32 and from bfloat16 on the wire. Each case is first
// compared with nd_to_nz.

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstring>
#include <vector>

#include "framework/tensor/fill.h"
#include "ops/kernels/nz.h"
#include "ops/nz.h"
#include "tests/bench/quantile.h"

namespace moegrad::bench {
namespace {

constexpr std::int64_t kRows = 512, kColumns = 768;

struct Buffers {
  explicit Buffers(std::int64_t experts) : blocks{experts, kRows, kColumns} {
    for (auto& value : source.mutable_data<float>()) value = static_cast<float>(next++ % 8191);
  }
  std::size_t bytes() const { return sizeof(float) * static_cast<std::size_t>(blocks.numel(Dtype::kFloat32)); }
  void copy_to(Tensor& to) {
    std::memcpy(to.mutable_data<float>().data(), source.data<float>().data(), bytes());
    benchmark::ClobberMemory();
  }
  template <class Source>
  void slice(const Tensor& from) {
    kernels::slice_rows_to_nz(from.data<Source>().data(), kColumns, 0, blocks.batch * blocks.k,
                              blocks, target.mutable_data<float>().data());
    benchmark::ClobberMemory();
  }

  NzBlocks blocks;
  std::int64_t next = 0;
  Tensor source = Tensor::empty({blocks.batch, kRows, kColumns}, Dtype::kFloat32);
  Tensor copy = Tensor::empty(source.shape(), Dtype::kFloat32);
  Tensor target = Tensor::empty(source.shape(), Dtype::kFloat32);
};

bool is_converted(const Buffers& buffers) {
  const Tensor expected = ops::nd_to_nz(buffers.source);
  return std::memcmp(expected.nz_data<float>().data(), buffers.target.data<float>().data(),
                     buffers.bytes()) == 0;
}

double milliseconds(const auto& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

// Measures `body` in turn with a plain copy. "copies": its time in plain copies, the median.
template <class Body>
void run(benchmark::State& state, Buffers& buffers, const Body& body) {
  body();
  if (!is_converted(buffers)) return state.SkipWithError("differs from nd_to_nz");
  std::vector<double> ratios;
  for (auto _ : state) {
    const double copy = milliseconds([&] { buffers.copy_to(buffers.copy); });
    const double time = milliseconds(body);
    state.SetIterationTime(time / 1e3);
    ratios.push_back(time / copy);
  }
  state.counters["copies"] = median(ratios);
  state.counters["GB/s"] = benchmark::Counter(
      static_cast<double>(buffers.bytes()) * static_cast<double>(state.iterations()) / 1e9,
      benchmark::Counter::kIsRate);
}

void slice_to_nz(benchmark::State& state) {
  Buffers buffers(state.range(0));
  run(state, buffers, [&] { buffers.slice<float>(buffers.source); });
}

void copy_then_convert(benchmark::State& state) {
  Buffers buffers(state.range(0));
  run(state, buffers, [&] {
    buffers.copy_to(buffers.copy);
    buffers.slice<float>(buffers.copy);
  });
}

void slice_bfloat16_to_nz(benchmark::State& state) {
  Buffers buffers(state.range(0));
  const Tensor wire = to_dtype(buffers.source, Dtype::kBFloat16);
  buffers.source = to_dtype(wire, Dtype::kFloat32);
  run(state, buffers, [&] { buffers.slice<BFloat16>(wire); });
}

// 3, 12.6, 50 and 201 MB.
void sizes(benchmark::internal::Benchmark* cases) {
  for (const std::int64_t experts : {2, 8, 32, 128}) cases->Arg(experts);
  cases->ArgName("experts")->UseManualTime()->Unit(benchmark::kMillisecond);
}

BENCHMARK(slice_to_nz)->Apply(sizes);
BENCHMARK(copy_then_convert)->Apply(sizes);
BENCHMARK(slice_bfloat16_to_nz)->Apply(sizes);

}  // namespace
}  // namespace moegrad::bench
