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
//
// The blocks of bfloat16, of 128 experts, come from bfloat16 on the wire, whose measure is a plain
// copy of as many bytes, or from float32 shards, whose measure is a plain conversion to bfloat16.
// "speed" is that of the measure divided into theirs.

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "framework/tensor/fill.h"
#include "ops/kernels/bf16/blocks.h"
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
  std::size_t bytes() const {
    return sizeof(float) * static_cast<std::size_t>(blocks.numel(Dtype::kFloat32));
  }
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

// Measures `body` in turn with `plain`. Returns its time in that of plain, the median.
template <class Plain, class Body>
double run_in_turn(benchmark::State& state, std::size_t bytes, const Plain& plain,
                   const Body& body) {
  std::vector<double> ratios;
  for (auto _ : state) {
    const double measure = milliseconds(plain);
    const double time = milliseconds(body);
    state.SetIterationTime(time / 1e3);
    ratios.push_back(time / measure);
  }
  state.counters["GB/s"] =
      benchmark::Counter(static_cast<double>(bytes) * static_cast<double>(state.iterations()) / 1e9,
                         benchmark::Counter::kIsRate);
  return median(ratios);
}

// Measures `body` in turn with a plain copy. "copies": its time in plain copies, the median.
template <class Body>
void run(benchmark::State& state, Buffers& buffers, const Body& body) {
  body();
  if (!is_converted(buffers)) return state.SkipWithError("differs from nd_to_nz");
  state.counters["copies"] = run_in_turn(
      state, buffers.bytes(), [&] { buffers.copy_to(buffers.copy); }, body);
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

template <class Source>
void slice_to_pairs(benchmark::State& state) {
  const NzBlocks blocks{128, state.range(0), state.range(1)};
  const NzPairs pairs{static_cast<PairOrder>(state.range(2)), state.range(3) != 0};
  const auto rows = blocks.batch * blocks.k;
  const Shape shape{rows, blocks.n};
  Tensor floats = Tensor::empty(shape, Dtype::kFloat32);
  std::int64_t next = 0;
  for (auto& value : floats.mutable_data<float>()) value = static_cast<float>(next++ % 8191);
  const Tensor from = to_dtype(floats, dtype_of<Source>);
  const Source* const source = from.data<Source>().data();
  Tensor copy = Tensor::empty(shape, Dtype::kBFloat16);
  Tensor packed = Tensor::empty(shape, Dtype::kBFloat16);
  BFloat16* const out = packed.mutable_data<BFloat16>().data();
  const auto slice = [&] {
    kernels::bf16::slice_rows_to_pairs(source, blocks.n, 0, rows, blocks, pairs, out);
    benchmark::ClobberMemory();
  };
  const auto bytes = sizeof(Source) * static_cast<std::size_t>(from.numel());
  const auto plain = [&] {
    copy_(copy, from);
    benchmark::ClobberMemory();
  };
  slice();
  for (std::int64_t i = 0; i < from.numel(); ++i) {
    const auto row = i / blocks.n, matrix = row / blocks.k * blocks.k * blocks.n;
    if (out[matrix + nz_offset(row % blocks.k, i % blocks.n, blocks, pairs)] !=
        static_cast<BFloat16>(source[i])) {
      return state.SkipWithError("an element is not in its place");
    }
  }
  state.counters["speed"] = 1 / run_in_turn(state, bytes, plain, slice);
}

// 3, 12.6, 50 and 201 MB.
void sizes(benchmark::internal::Benchmark* cases) {
  for (const std::int64_t experts : {2, 8, 32, 128}) cases->Arg(experts);
  cases->ArgName("experts")->UseManualTime()->Unit(benchmark::kMillisecond);
}

void forms(benchmark::internal::Benchmark* cases) {
  for (const auto& [k, n] : {std::pair{512, 256}, {128, 512}}) {
    for (const auto order : {PairOrder::kNeighbours, PairOrder::kChains}) {
      for (const int transposed : {0, 1}) cases->Args({k, n, static_cast<int>(order), transposed});
    }
  }
  cases->ArgNames({"k", "n", "chains", "transposed"})
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

BENCHMARK(slice_to_nz)->Apply(sizes);
BENCHMARK(copy_then_convert)->Apply(sizes);
BENCHMARK(slice_bfloat16_to_nz)->Apply(sizes);
BENCHMARK(slice_to_pairs<BFloat16>)->Apply(forms);
BENCHMARK(slice_to_pairs<float>)->Apply(forms);

}  // namespace
}  // namespace moegrad::bench
