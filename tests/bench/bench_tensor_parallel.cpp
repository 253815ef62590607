// SPDX-License-Identifier: Apache-2.0

// How much of the communication of tensor parallelism is hidden, on two ranks over a modelled link
// on which it takes as long as the products:
//
//     build/release/tests/bench_tensor_parallel [--pairs N]
//
// mm_all_reduce in tiles against one tile, and a column- and a row-parallel linear layer with
// divided rows, forward and backward, in tiles against one tile. Times are medians over runs in
// turns. The link's rate is such that communication, copies and additions included, takes as long
// as the products. Then mm_all_reduce of int8, of bfloat16 and of float32 on one rank.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <iomanip>
#include <iostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "framework/autograd/engine.h"
#include "framework/distributed/collectives.h"
#include "framework/distributed/comm_handle.h"
#include "framework/distributed/launch.h"
#include "framework/runtime/program.h"
#include "framework/runtime/random.h"
#include "framework/runtime/rank_context.h"
#include "framework/tensor/fill.h"
#include "ops/linear.h"
#include "ops/matmul.h"
#include "ops/mm_all_reduce.h"
#include "ops/parallel_linear.h"
#include "tests/bench/quantile.h"
#include "train/config/command_line.h"
#include "train/config/common_options.h"

namespace moegrad::bench {
namespace {

constexpr int kRanks = 2;
constexpr std::int64_t kRows = 2048, kWidth = 1024;
constexpr std::int64_t kTiles[] = {1, 2, 4, 8, 16};

Tensor randn(const Shape& shape, std::uint64_t seed) {
  return Tensor::randn(shape, {seed, "bench_tensor_parallel"});
}

/// What a rank runs, with so many tiles; 0: the products alone.
using Work = std::function<void(RankContext& context, std::int64_t tiles)>;

void multiply_and_reduce(RankContext& context, std::int64_t tiles) {
  static thread_local const Tensor x1 = randn({kRows, kWidth / kRanks}, 1);
  static thread_local const Tensor x2 = randn({kWidth / kRanks, kWidth}, 2);
  const Tensor y = tiles == 0
                       ? ops::matmul(x1, x2)
                       : ops::mm_all_reduce(x1, x2, comm_handle(context.group()), {.tiles = tiles});
}

// Up to four times the width and back, as an MLP, on this rank's half of the rows.
void run_layers(RankContext& context, std::int64_t tiles) {
  static thread_local const Tensor x =
      randn({kRows / kRanks, kWidth / 2}, 1).set_requires_grad(true);
  static thread_local const Tensor up = randn({kWidth, kWidth / 2}, 2).set_requires_grad(true);
  static thread_local const Tensor down = randn({kWidth / 2, kWidth}, 3).set_requires_grad(true);
  static thread_local const Tensor grad = randn({kRows / kRanks, kWidth / 2}, 4);
  if (tiles == 0) {
    static thread_local const Tensor all = randn({kRows, kWidth / 2}, 1).set_requires_grad(true);
    static thread_local const Tensor all_grad = randn({kRows, kWidth / 2}, 4);
    return ops::linear(ops::linear(all, up), down).backward(all_grad);
  }
  const ops::ParallelLinearOptions options{.divided_rows = true, .tiles = tiles};
  const auto& group = context.group();
  const Tensor hidden = ops::column_parallel_linear(group, x, up, options);
  ops::row_parallel_linear(group, hidden, down, options).backward(grad);
}

/// Medians of the slower rank's times, one for each number of tiles, over a link.
std::vector<double> seconds_over(const LinkModel& link, const Work& work, std::int64_t runs,
                                 std::span<const std::int64_t> tiles) {
  std::vector<double> medians;
  LaunchOptions options;
  options.link = link;
  launch(
      kRanks,
      [&](RankContext& context) {
        std::vector<std::vector<double>> times(tiles.size());
        for (std::int64_t run = 0; run <= runs; ++run) {
          for (std::size_t i = 0; i < tiles.size(); ++i) {
            context.group()->barrier()->wait();
            const auto begin = std::chrono::steady_clock::now();
            work(context, tiles[i]);
            double seconds =
                std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
            seconds = all_reduce(*context.group(), seconds, ReduceOp::kMax);
            if (run > 0) times[i].push_back(seconds);  // the first touches memory
          }
        }
        if (context.rank() != 0) return;
        for (auto& each : times) medians.push_back(median(std::move(each)));
      },
      options);
  return medians;
}

void measure(const std::string& name, const Work& work, std::int64_t bytes, std::int64_t runs) {
  const std::int64_t none_and_one[] = {0, 1};
  const auto free = seconds_over({}, work, runs, none_and_one);
  const double products = free[0], copies = free[1] - free[0];
  const LinkModel link{.bytes_per_second = static_cast<double>(bytes) / (products - copies)};
  const auto times = seconds_over(link, work, runs, kTiles);
  std::cout << name << ": products " << std::fixed << std::setprecision(2) << products * 1e3
            << " ms, copies and additions " << copies * 1e3 << " ms, over a link of "
            << link.bytes_per_second / 1e6 << " MB/s\n";
  for (std::size_t i = 0; i < times.size(); ++i) {
    const double hidden = (times[0] - times[i]) / (times[0] - products);
    std::cout << std::setw(4) << kTiles[i] << " tiles " << std::setw(7) << times[i] * 1e3 << " ms, "
              << times[i] / times[0] << " of one tile, " << std::setprecision(0) << 100 * hidden
              << " % of the communication hidden\n"
              << std::setprecision(2);
  }
}

// What quantised operands cost and gain where nothing is sent.
void measure_dtypes(std::int64_t runs) {
  const auto made = [](Dtype dtype, std::uint64_t seed) {
    Tensor codes = Tensor::empty({kRows, kRows}, Dtype::kInt8);
    const Random random(seed, "bench_tensor_parallel");
    std::uint64_t i = 0;
    for (auto& code : codes.mutable_data<std::int8_t>()) {
      code = static_cast<std::int8_t>(random.integer(i++, 256) - 128);
    }
    return to_dtype(codes, dtype);
  };
  launch(1, [&](RankContext& context) {
    const auto handle = comm_handle(context.group());
    constexpr Dtype kDtypes[] = {Dtype::kFloat32, Dtype::kBFloat16, Dtype::kInt8};
    TensorList left, right;
    for (const auto dtype : kDtypes) {
      left.push_back(made(dtype, 1));
      right.push_back(made(dtype, 2));
    }
    std::vector<std::vector<double>> times(std::size(kDtypes));
    for (std::int64_t run = 0; run <= runs; ++run) {
      for (std::size_t i = 0; i < times.size(); ++i) {
        ops::MmAllReduceOptions options{.tiles = 1};
        if (kDtypes[i] == Dtype::kInt8) options.dequant_scale = Tensor::full({1}, 1e-3);
        const auto begin = std::chrono::steady_clock::now();
        ops::mm_all_reduce(left[i], right[i], handle, options);
        const auto end = std::chrono::steady_clock::now();
        if (run > 0) times[i].push_back(std::chrono::duration<double>(end - begin).count());
      }
    }
    constexpr double kOperations = 2.0 * kRows * kRows * kRows;
    for (std::size_t i = 0; i < times.size(); ++i) {
      const double seconds = median(std::move(times[i]));
      std::cout << "mm_all_reduce on one rank, " << kDtypes[i] << ": " << seconds * 1e3 << " ms, "
                << kOperations / seconds / 1e9 << " Gop/s\n";
    }
  });
}

int parse_and_run(int argc, char** argv) {
  std::int64_t runs = 20;
  using namespace training;
  CommandLine line("Measures how much communication of tensor parallelism is hidden.",
                   {number_option("pairs", runs, {1, 1 << 20}, "runs of each, in turns")});
  if (const auto exit_code = line.parse(argc, argv)) return *exit_code;
  constexpr std::int64_t kFloat = 4, kHalf = kRows / kRanks * kWidth / 2 * kFloat;
  measure("mm_all_reduce", multiply_and_reduce, kRows * kWidth * kFloat, runs);
  // Forward gathers and scatters, backward gathers twice and scatters once.
  measure("linear layers, forward and backward", run_layers, 5 * kHalf, runs);
  measure_dtypes(runs);
  return 0;
}

}  // namespace
}  // namespace moegrad::bench

int main(int argc, char** argv) {
  return moegrad::run_program_once("bench_tensor_parallel",
                                   [&] { return moegrad::bench::parse_and_run(argc, argv); });
}
