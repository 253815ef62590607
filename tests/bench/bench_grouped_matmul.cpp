// SPDX-License-Identifier: Apache-2.0

// The grouped matmul on FRACTAL_NZ weights: forward y = x W, input gradient dx = dy W^T from the
// same storage, weight gradient dW = x^T dy, float32, as many rows for each expert.
//
//     build/release/tests/bench_grouped_matmul [--threads N] [--benchmark_filter=...]
//
// Each case is first compared with Eigen. Shares of the FMA peak: against_peak.h.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/runtime/random.h"
#include "framework/runtime/rank_context.h"
#include "framework/tensor/fill.h"
#include "ops/grouped_products.h"
#include "ops/kernels/matmul_eigen.h"
#include "ops/nz.h"
#include "tests/bench/against_peak.h"

namespace moegrad::bench {
namespace {

enum class Product { kForward, kInputGradient, kWeightGradient };

struct Case {
  Product product;
  std::int64_t experts, k, n, rows;  // x [experts * rows, k], W [experts, k, n]
};

Tensor randn(const Shape& shape, std::uint64_t seed) {
  const Random random(seed, "bench_grouped_matmul");
  Tensor tensor = Tensor::empty(shape, Dtype::kFloat32);
  std::uint64_t i = 0;
  for (auto& value : tensor.mutable_data<float>()) value = static_cast<float>(random.normal(i++));
  return tensor;
}

/// The operands of a case, and its product by either way.
class Operands {
 public:
  explicit Operands(const Case& which)
      : case_(which),
        x_(randn({which.experts * which.rows, which.k}, 1)),
        dy_(randn({which.experts * which.rows, which.n}, 2)),
        weight_(randn({which.experts, which.k, which.n}, 3)),
        nz_(ops::nd_to_nz(weight_)) {
    for (std::int64_t e = 0; e <= which.experts; ++e) offsets_.push_back(e * which.rows);
  }

  Tensor product() const {
    if (case_.product == Product::kWeightGradient) {
      return ops::multiply_column_groups(x_, dy_, offsets_, weight_.shape());
    }
    const bool transposed = case_.product == Product::kInputGradient;
    return ops::multiply_row_groups(transposed ? dy_ : x_,
                                    ops::stored_matrices(nz_, case_.experts, transposed), offsets_,
                                    transposed ? case_.k : case_.n);
  }

  double largest_difference_to_eigen() const {
    const Tensor result = product();
    std::vector<float> expected(static_cast<std::size_t>(result.numel()));
    const auto [product, experts, k, n, rows] = case_;
    const float* x = x_.data<float>().data();
    const float* dy = dy_.data<float>().data();
    const float* w = weight_.data<float>().data();
    for (std::int64_t e = 0; e < experts; ++e, x += rows * k, dy += rows * n, w += k * n) {
      float* out = expected.data() + e * (std::ssize(expected) / experts);
      if (product == Product::kForward) {
        kernels::matmul_eigen(x, false, w, false, out, false, rows, k, n);
      } else if (product == Product::kInputGradient) {
        kernels::matmul_eigen(dy, false, w, true, out, false, rows, n, k);
      } else {
        kernels::matmul_eigen(x, true, dy, false, out, false, k, rows, n);
      }
    }
    double worst = 0;
    std::size_t i = 0;
    for (const auto value : result.data<float>()) {
      worst = std::max(worst, std::abs(static_cast<double>(value) - expected[i++]));
    }
    return worst;
  }

 private:
  Case case_;
  Tensor x_, dy_, weight_, nz_;
  std::vector<std::int64_t> offsets_;
};

void run(benchmark::State& state, const Case& which) {
  const Operands operands(which);
  const double sum_length =
      static_cast<double>(which.product == Product::kForward         ? which.k
                          : which.product == Product::kInputGradient ? which.n
                                                                     : which.rows);
  // Sums of so many products of standard normal numbers.
  if (!(operands.largest_difference_to_eigen() <= 1e-5 * sum_length)) {
    state.SkipWithError("differs from Eigen's product");
    return;
  }
  const double flops = 2.0 * static_cast<double>(which.experts * which.rows * which.k * which.n);
  run_against_peak(state, flops, [&] { benchmark::DoNotOptimize(operands.product()); });
}

void register_cases() {
  struct Weights {
    const char* name;
    std::int64_t experts, k, n;
  };
  constexpr Weights kWeights[] = {{"L2", 1, 256, 384}, {"50MB", 32, 512, 768}};
  constexpr std::pair<const char*, Product> kProducts[] = {
      {"forward", Product::kForward},
      {"input_gradient", Product::kInputGradient},
      {"weight_gradient", Product::kWeightGradient}};
  for (const auto& [weights, experts, k, n] : kWeights) {
    for (const auto& [name, product] : kProducts) {
      for (const std::int64_t rows : {1, 4, 8, 16, 32, 64, 128, 256}) {
        const Case which{product, experts, k, n, rows};
        benchmark::RegisterBenchmark(
            (std::string(name) + "/weights:" + weights + "/rows:" + std::to_string(rows)).c_str(),
            [which](benchmark::State& state) { run(state, which); })
            ->UseManualTime();
      }
    }
  }
}

}  // namespace
}  // namespace moegrad::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  int threads = 1;
  if (argc == 3 && std::string_view(argv[1]) == "--threads") {
    threads = std::atoi(argv[2]);
  } else if (argc != 1) {
    std::cerr << "usage: bench_grouped_matmul [--threads N] [--benchmark_...]\n";
    return 2;
  }
  moegrad::RankContext::current().set_threads(threads);
  moegrad::bench::register_cases();
  benchmark::RunSpecifiedBenchmarks();
}
