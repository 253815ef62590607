// SPDX-License-Identifier: Apache-2.0

// Causal attention over packed documents, forward and backward, float32, 8 query heads, 2
// key/value heads, head dimension 64.
//
//     build/release/tests/bench_attention [--threads N] [--benchmark_...]
//
// Counted are the products of visible pairs: two forward, five backward (the scores once more).
// Each case is first compared with the softmax of whole rows, composed of plain ops in float64.
// Shares of the FMA peak: against_peak.h.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "framework/autograd/function.h"
#include "framework/runtime/random.h"
#include "framework/tensor/fill.h"
#include "ops/attention.h"
#include "ops/copies.h"
#include "ops/elementwise.h"
#include "ops/matmul_reference.h"
#include "ops/reduce.h"
#include "ops/softmax.h"
#include "ops/views.h"
#include "tests/bench/against_peak.h"
#include "tests/bench/bench_main.h"

namespace moegrad::bench {
namespace {

constexpr std::int64_t kHeads = 8, kKvHeads = 2, kDim = 64;

struct Inputs {
  Inputs(std::int64_t documents, std::int64_t length) {
    const auto tokens = documents * length;
    const auto randn = [&](std::int64_t heads, const char* purpose) {
      const Random random(1, purpose);
      Tensor tensor = Tensor::empty({tokens, heads, kDim}, Dtype::kFloat32);
      std::uint64_t i = 0;
      for (auto& x : tensor.mutable_data<float>()) x = static_cast<float>(random.normal(i++));
      return tensor;
    };
    q = randn(kHeads, "q");
    k = randn(kKvHeads, "k");
    v = randn(kKvHeads, "v");
    grad_out = randn(kHeads, "grad_out");
    for (auto* leaf : {&q, &k, &v}) leaf->set_requires_grad(true);
    packed = Documents::of_lengths(std::vector(static_cast<std::size_t>(documents), length));
  }
  Tensor forward() const { return ops::attention(q, k, v, packed, scale); }

  Tensor q, k, v, grad_out;
  Documents packed;
  double scale = 1 / std::sqrt(static_cast<double>(kDim));
};

double largest_difference(const Tensor& a, const Tensor& b) {
  double worst = 0;
  std::size_t i = 0;
  for (const auto x : b.data<double>()) {
    worst = std::max(worst, std::abs(x - static_cast<double>(a.data<float>()[i++])));
  }
  return worst;
}

// softmax(scale q k^T + mask) v of one head of one document, by matmuls over whole rows, and its
// gradients, against what attention gives for the same rows.
double error_of_head(const Inputs& in, const Tensor& out, std::int64_t document,
                     std::int64_t head) {
  const auto& offsets = in.packed.offsets();
  const auto begin = offsets[static_cast<std::size_t>(document)];
  const auto length = offsets[static_cast<std::size_t>(document) + 1] - begin;
  const auto rows = [&](const Tensor& from, std::int64_t h) {
    const Tensor part = ops::narrow(ops::narrow(from.detach(), 0, begin, length), 1, h, 1);
    return to_dtype(ops::reshape(ops::contiguous(part), {length, kDim}), Dtype::kFloat64);
  };
  Tensor mask = Tensor::zeros({length, length}, Dtype::kFloat64);
  for (std::int64_t t = 0; t < length; ++t) {
    for (auto j = t + 1; j < length; ++j) {
      mask.mutable_data<double>()[static_cast<std::size_t>(t * length + j)] = -1e30;
    }
  }
  Tensor q = clone(rows(in.q, head));
  q.set_requires_grad(true);
  const auto kv_head = head / (kHeads / kKvHeads);
  const Tensor scores =
      ops::matmul_reference(q, ops::transpose(rows(in.k, kv_head), 0, 1)) * in.scale + mask;
  const Tensor expected = ops::matmul_reference(ops::softmax(scores), rows(in.v, kv_head));
  expected.backward(rows(in.grad_out, head));
  const auto single = [&](const Tensor& from) {
    const Tensor part = ops::narrow(ops::narrow(from.detach(), 0, begin, length), 1, head, 1);
    return ops::reshape(ops::contiguous(part), {length, kDim});
  };
  return std::max(largest_difference(single(out), expected.detach()),
                  largest_difference(single(in.q.grad()), q.grad()));
}

void run(benchmark::State& state, std::int64_t documents, std::int64_t length, bool backward) {
  const Inputs in(documents, length);
  if (length <= 1024) {
    const Tensor out = in.forward();
    out.backward(in.grad_out);
    for (const std::int64_t head : {std::int64_t{0}, kHeads - 1}) {
      if (!(error_of_head(in, out, documents - 1, head) <= 1e-4)) {
        state.SkipWithError("differs from the softmax of whole rows");
        return;
      }
    }
    for (const auto& leaf : {in.q, in.k, in.v}) leaf.set_grad({});
  }
  const double pairs = static_cast<double>(documents) * static_cast<double>(length) *
                       static_cast<double>(length + 1) / 2;
  const double product = 2.0 * pairs * kHeads * kDim;
  if (!backward) {
    run_against_peak(state, 2 * product, [&] { benchmark::DoNotOptimize(in.forward()); });
    return;
  }
  const Tensor out = in.forward();
  const auto function = out.grad_fn();
  run_against_peak(state, 5 * product, [&] {
    benchmark::DoNotOptimize(function->backward({in.grad_out}, InputMask(7)));
  });
}

void register_cases() {
  for (const auto& [documents, length] :
       {std::pair<std::int64_t, std::int64_t>{1, 512}, {4, 512}, {16, 128}, {1, 4096}}) {
    for (const bool backward : {false, true}) {
      const std::string name = std::string(backward ? "backward" : "forward") + "/" +
                               std::to_string(documents) + "x" + std::to_string(length);
      benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
        run(state, documents, length, backward);
      })->UseManualTime();
    }
  }
}

}  // namespace
}  // namespace moegrad::bench

int main(int argc, char** argv) {
  return moegrad::bench::bench_main(argc, argv, "Causal attention, forward and backward.", {},
                                    moegrad::bench::register_cases);
}
