// SPDX-License-Identifier: Apache-2.0

// The grouped matmul on FRACTAL_NZ weights: forward y = x W, input gradient dx = dy W^T from the
// same storage and from a transposed copy, weight gradient dW = x^T dy, float32, as many rows for
// each expert.
//
//     build/release/tests/bench_grouped_matmul [--threads N] [--libraries] [--benchmark_...]
//
// --libraries measures in turn, on one thread and on plain weights, a loop over the experts with
// the products of Eigen and of what is installed of OpenBLAS, BLIS and oneDNN. Each case is first
// compared with Eigen. Shares of the FMA peak: against_peak.h.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "framework/runtime/random.h"
#include "framework/tensor/fill.h"
#include "ops/copies.h"
#include "ops/grouped_products.h"
#include "ops/nz.h"
#include "ops/views.h"
#include "tests/bench/against_peak.h"
#include "tests/bench/bench_main.h"
#include "tests/bench/blas_libraries.h"

namespace moegrad::bench {
namespace {

enum class Product { kForward, kInputGradient, kInputGradientFromCopy, kWeightGradient };

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
        weight_(randn({which.experts, which.k, which.n}, 3)) {
    const bool copy = which.product == Product::kInputGradientFromCopy;
    nz_ = ops::nd_to_nz(copy ? ops::contiguous(ops::transpose(weight_, 1, 2)) : weight_);
    for (std::int64_t e = 0; e <= which.experts; ++e) offsets_.push_back(e * which.rows);
    const bool by_rows = which.product != Product::kWeightGradient;
    plain_.resize(static_cast<std::size_t>(
        by_rows ? x_.dim(0) * (which.product == Product::kForward ? which.n : which.k)
                : weight_.numel()));
  }

  Tensor product() const {
    if (case_.product == Product::kWeightGradient) {
      return ops::multiply_column_groups(x_, dy_, offsets_, weight_.shape());
    }
    const bool forward = case_.product == Product::kForward;
    const bool transposed = case_.product == Product::kInputGradient;
    return ops::multiply_row_groups(forward ? x_ : dy_,
                                    ops::stored_matrices(nz_, case_.experts, transposed), offsets_,
                                    forward ? case_.n : case_.k);
  }

  const std::vector<float>& product_by(const BlasLibrary& library) {
    const auto [product, experts, k, n, rows] = case_;
    const float* x = x_.data<float>().data();
    const float* dy = dy_.data<float>().data();
    const float* w = weight_.data<float>().data();
    float* out = plain_.data();
    for (std::int64_t e = 0; e < experts; ++e, x += rows * k, dy += rows * n, w += k * n) {
      if (product == Product::kForward) {
        library.multiply({false, false, rows, n, k, x, w, out});
      } else if (product == Product::kWeightGradient) {
        library.multiply({true, false, k, n, rows, x, dy, out});
      } else {
        library.multiply({false, true, rows, k, n, dy, w, out});
      }
      out += std::ssize(plain_) / experts;
    }
    return plain_;
  }

  double largest_difference_to(const BlasLibrary& library) {
    const Tensor result = product();
    const auto& expected = product_by(library);
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
  std::vector<float> plain_;
};

void run(benchmark::State& state, const Case& which, const std::vector<BlasLibrary>& libraries) {
  Operands operands(which);
  const double sum_length =
      static_cast<double>(which.product == Product::kForward          ? which.k
                          : which.product == Product::kWeightGradient ? which.rows
                                                                      : which.n);
  // Sums of so many products of standard normal numbers.
  for (const auto& library : blas_libraries()) {
    if (!(operands.largest_difference_to(library) <= 1e-5 * sum_length)) {
      state.SkipWithError(("differs from the product of " + library.name).c_str());
      return;
    }
  }
  std::vector<std::pair<std::string, std::function<void()>>> others;
  for (const auto& library : libraries) {
    others.emplace_back(library.name,
                        [&] { benchmark::DoNotOptimize(operands.product_by(library).data()); });
  }
  run_against_peak(
      state, 2.0 * static_cast<double>(which.experts * which.rows * which.k * which.n),
      [&] { benchmark::DoNotOptimize(operands.product()); }, others);
}

void register_cases(bool with_libraries) {
  const auto libraries = with_libraries ? blas_libraries() : std::vector<BlasLibrary>{};
  struct Weights {
    const char* name;
    std::int64_t experts, k, n;
  };
  constexpr Weights kWeights[] = {{"L2", 1, 256, 384}, {"50MB", 32, 512, 768}};
  constexpr std::pair<const char*, Product> kProducts[] = {
      {"forward", Product::kForward},
      {"input_gradient", Product::kInputGradient},
      {"input_gradient_from_copy", Product::kInputGradientFromCopy},
      {"weight_gradient", Product::kWeightGradient}};
  for (const auto& [weights, experts, k, n] : kWeights) {
    for (const auto& [name, product] : kProducts) {
      for (const std::int64_t rows : {1, 4, 8, 16, 32, 64, 128, 256}) {
        const Case which{product, experts, k, n, rows};
        benchmark::RegisterBenchmark(
            (std::string(name) + "/weights:" + weights + "/rows:" + std::to_string(rows)).c_str(),
            [which, libraries](benchmark::State& state) { run(state, which, libraries); })
            ->UseManualTime();
      }
    }
  }
}

}  // namespace
}  // namespace moegrad::bench

int main(int argc, char** argv) {
  bool libraries = false;
  return moegrad::bench::bench_main(
      argc, argv, "The grouped matmul on FRACTAL_NZ weights.",
      {moegrad::training::flag_option("libraries", libraries,
                                      "in turn with Eigen, OpenBLAS, BLIS and oneDNN")},
      [&] { moegrad::bench::register_cases(libraries); });
}
