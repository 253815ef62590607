// SPDX-License-Identifier: Apache-2.0

// Products of bfloat16 against those of float32, in turns:
//
//     build/release/tests/bench_bf16_products [--threads-per-rank N] [--pairs N]
//
// 2,048 rows of one weight [512, 512], and 256 rows for each of 32: y = x W, dx = dy W^T and dW =
// x^T dy, packing included. Where weights are gathered, products read them as FRACTAL_NZ in the
// form that they need ("packed"). A ratio is the median over pairs of runs that follow each other;
// float32 has vectors of 32 bytes beside the narrow kernels, else this CPU's widest.

#include <chrono>
#include <cstdint>
#include <functional>
#include <iomanip>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "framework/distributed/launch.h"
#include "framework/runtime/program.h"
#include "framework/runtime/random.h"
#include "framework/runtime/rank_context.h"
#include "framework/tensor/fill.h"
#include "ops/copies.h"
#include "ops/grouped_products.h"
#include "ops/nz.h"
#include "ops/views.h"
#include "tests/bench/quantile.h"
#include "train/config/command_line.h"
#include "train/config/common_options.h"

namespace moegrad::bench {
namespace {

constexpr std::int64_t kWidth = 512;

Tensor randn(const Shape& shape, std::uint64_t seed) {
  return Tensor::randn(shape, {seed, "bench_bf16_products"});
}

/// The operands of the products with `experts` weights in one dtype, for one kind of kernels.
class Operands {
 public:
  Operands(std::int64_t experts, std::int64_t rows, Dtype dtype)
      : experts_(experts),
        x_(to_dtype(randn({experts * rows, kWidth}, 1), dtype)),
        dy_(to_dtype(randn({experts * rows, kWidth}, 2), dtype)),
        weight_(to_dtype(randn({experts, kWidth, kWidth}, 3), dtype)),
        packed_(ops::nd_to_nz(weight_)),
        packed_transpose_(ops::nd_to_nz(ops::contiguous(ops::transpose(weight_, 1, 2)))) {
    for (std::int64_t e = 0; e <= experts; ++e) offsets_.push_back(e * rows);
  }

  void run(std::string_view product) const {
    if (product == "dW") {
      ops::multiply_column_groups(x_, dy_, offsets_, weight_.shape());
      return;
    }
    const bool forward = product.starts_with("y"), packed = product.ends_with("packed");
    // In float32 a packed weight is read in both orientations.
    const bool other_form = packed && !forward && weight_.dtype() == Dtype::kBFloat16;
    const Tensor& weight = !packed ? weight_ : other_form ? packed_transpose_ : packed_;
    ops::multiply_row_groups(forward ? x_ : dy_,
                             ops::stored_matrices(weight, experts_, !forward && !other_form),
                             offsets_, kWidth);
  }
  double flops() const {
    return 2.0 * static_cast<double>(x_.numel()) * static_cast<double>(kWidth);
  }

 private:
  std::int64_t experts_;
  Tensor x_, dy_, weight_, packed_, packed_transpose_;
  std::vector<std::int64_t> offsets_;
};

double seconds_of(const Operands& operands, std::string_view product) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  operands.run(product);
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void compare(RankContext& context, CpuKernels kernels, std::int64_t pairs) {
  const auto for_float = kernels == CpuKernels::kNarrow ? kernels : fastest_cpu_kernels();
  for (const std::int64_t experts : {1, 32}) {
    const std::int64_t rows = experts == 1 ? 2048 : 256;
    context.set_kernels(for_float);
    const Operands wide(experts, rows, Dtype::kFloat32);
    context.set_kernels(kernels);
    const Operands narrow(experts, rows, Dtype::kBFloat16);
    for (const auto* const product : {"y", "y packed", "dx", "dx packed", "dW"}) {
      std::vector<double> ratios, narrow_times, wide_times;
      for (std::int64_t pair = 0; pair <= pairs; ++pair) {
        context.set_kernels(kernels);
        const double own = seconds_of(narrow, product);
        context.set_kernels(for_float);
        const double other = seconds_of(wide, product);
        if (pair == 0) continue;  // the first touches memory
        ratios.push_back(other / own);
        narrow_times.push_back(own);
        wide_times.push_back(other);
      }
      std::cout << std::setw(12) << to_string(kernels) << std::setw(4) << experts << " x "
                << std::setw(4) << rows << std::setw(11) << product << std::fixed
                << std::setprecision(0) << std::setw(8)
                << narrow.flops() / median(narrow_times) / 1e9 << " GFLOP/s, float32 "
                << std::setw(5) << wide.flops() / median(wide_times) / 1e9 << ", ratio "
                << std::setprecision(2) << median(ratios) << '\n';
    }
  }
}

int parse_and_run(int argc, char** argv) {
  int threads = 1;
  std::int64_t pairs = 30;
  using namespace training;
  CommandLine line("Measures products of bfloat16 against those of float32.",
                   {threads_option(threads),
                    number_option("pairs", pairs, {1, 1 << 20}, "runs of each, in turns")});
  if (const auto exit_code = line.parse(argc, argv)) return *exit_code;
  LaunchOptions options;
  options.threads_per_rank = threads;
  launch(
      1,
      [&](RankContext& context) {
        for (const auto kernels : available_cpu_kernels()) compare(context, kernels, pairs);
      },
      options);
  return 0;
}

}  // namespace
}  // namespace moegrad::bench

int main(int argc, char** argv) {
  return moegrad::run_program_once("bench_bf16_products",
                                   [&] { return moegrad::bench::parse_and_run(argc, argv); });
}
