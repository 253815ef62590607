// SPDX-License-Identifier: Apache-2.0

// The ops around the matmuls at the sizes of preset main: 2048 tokens, hidden 512, 32 experts
// top-4, inner 256, vocabulary 4096; forward and backward, float32.
//
//     build/release/tests/bench_ops [--threads N] [--benchmark_...]
//
// Counted are the bytes of each input and output once; the table has the time over that of a plain
// copy of as many bytes (against_copy.h). Each op is first compared, its gradients with it, with
// its composition from plain ops in float64.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "framework/autograd/function.h"
#include "framework/runtime/random.h"
#include "framework/tensor/fill.h"
#include "ops/add_rms_norm.h"
#include "ops/copies.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/reduce.h"
#include "ops/rms_norm.h"
#include "ops/rms_norm_rope.h"
#include "ops/rope.h"
#include "ops/router.h"
#include "ops/routing.h"
#include "ops/softmax.h"
#include "ops/split_cat.h"
#include "ops/swiglu.h"
#include "ops/views.h"
#include "optim/adamw.h"
#include "tests/bench/against_copy.h"
#include "tests/bench/bench_main.h"

namespace moegrad::bench {
namespace {

constexpr std::int64_t kTokens = 2048, kHidden = 512, kExperts = 32, kTopK = 4, kInner = 256,
                       kVocabulary = 4096, kHeads = 8, kHeadDim = 64, kRows = kTokens * kTopK;

using Op = std::function<Tensor(const TensorList&)>;

struct Case {
  std::string name;
  std::vector<Shape> inputs;
  Op op, composition;
  std::int64_t forward, backward;  // elements that must move
};

Tensor randn(const Shape& shape, std::uint64_t seed) {
  const Random random(seed, "bench_ops");
  Tensor tensor = Tensor::empty(shape, Dtype::kFloat32);
  std::uint64_t i = 0;
  for (auto& x : tensor.mutable_data<float>()) x = static_cast<float>(random.normal(i++));
  return tensor;
}

Tensor random_indices(const Shape& shape, std::int64_t limit) {
  const Random random(1, "bench_ops indices");
  Tensor tensor = Tensor::empty(shape, Dtype::kInt64);
  std::uint64_t i = 0;
  for (auto& x : tensor.mutable_data<std::int64_t>()) x = random.integer(i++, limit);
  return tensor;
}

// y[i] = x[i, columns[i, j]] by a look-up in x as one column.
Tensor pick(const Tensor& x, const Tensor& columns) {
  Tensor at = clone(columns);
  const auto per_row = columns.numel() / x.dim(0);
  auto flat = at.mutable_data<std::int64_t>();
  for (std::size_t i = 0; i < flat.size(); ++i) {
    flat[i] += static_cast<std::int64_t>(i) / per_row * x.dim(1);
  }
  return ops::reshape(ops::embedding(at, ops::reshape(x, {x.numel(), 1})), columns.shape());
}

Tensor divide_by_slots(const Tensor& slots) {
  Tensor tokens = clone(slots);
  for (auto& slot : tokens.mutable_data<std::int64_t>()) slot /= kTopK;
  return tokens;
}

double largest_error(const Tensor& a, const Tensor& b) {
  double worst = 0;
  const Tensor expected = ops::contiguous(b.detach());
  std::size_t i = 0;
  for (const auto x : expected.data<double>()) {
    const auto y = static_cast<double>(a.data<float>()[i++]);
    const double error = std::abs(x - y) / std::max(1.0, std::abs(x));
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

TensorList leaves(const Case& each, Dtype dtype) {
  TensorList inputs;
  for (const auto& shape : each.inputs) {
    Tensor input = clone(to_dtype(randn(shape, inputs.size() + 1), dtype));
    inputs.push_back(input.set_requires_grad(true));
  }
  return inputs;
}

double error_of(const Case& each) {
  const auto narrow = leaves(each, Dtype::kFloat32), wide = leaves(each, Dtype::kFloat64);
  const Tensor y = each.op(narrow), expected = each.composition(wide);
  const Tensor cotangent = randn(y.shape(), 99);
  double worst = largest_error(y.detach(), expected);
  y.backward(cotangent);
  expected.backward(to_dtype(cotangent, Dtype::kFloat64));
  for (std::size_t i = 0; i < narrow.size(); ++i) {
    worst = std::max(worst, largest_error(narrow[i].grad(), wide[i].grad()));
  }
  return worst;
}

void run(benchmark::State& state, const Case& each, bool correct, bool backward) {
  if (!correct) {
    state.SkipWithError("differs from its composition of plain ops");
    return;
  }
  const auto inputs = leaves(each, Dtype::kFloat32);
  const Tensor y = each.op(inputs);
  constexpr auto kBytes = static_cast<std::int64_t>(sizeof(float));
  if (!backward) {
    run_against_copy(state, kBytes * each.forward, y.numel(),
                     [&] { benchmark::DoNotOptimize(each.op(inputs)); });
    return;
  }
  const auto function = y.grad_fn();
  TensorList grads(function->outputs().size());
  for (std::size_t i = 0; i < grads.size(); ++i) {
    const auto& output = function->outputs()[i];
    if (is_floating(output.dtype)) grads[i] = randn(output.shape, 99 + i);
  }
  run_against_copy(state, kBytes * each.backward, inputs[0].numel(), [&] {
    benchmark::DoNotOptimize(function->backward(grads, InputMask((1U << inputs.size()) - 1)));
  });
}

// Updates one parameter of the experts' size; first compared with the formula in double.
void adamw(benchmark::State& state) {
  const Shape shape{kExperts * kHidden, 2 * kInner};
  const optim::AdamW::Config config = {.lr = 1e-3};
  Tensor parameter = randn(shape, 1);
  const Tensor start = clone(parameter), grad = randn(shape, 2);
  parameter.set_requires_grad(true).set_grad(grad);
  optim::AdamW optimizer({{"weight", parameter}}, config);
  optimizer.step();
  for (std::size_t i = 0; i < static_cast<std::size_t>(shape.numel()); ++i) {
    const double g = grad.data<float>()[i], p = start.data<float>()[i];
    const double expected =
        p * (1 - config.lr * config.weight_decay) - config.lr * g / (std::abs(g) + config.eps);
    if (!(std::abs(expected - static_cast<double>(parameter.data<float>()[i])) <= 1e-6)) {
      return state.SkipWithError("differs from its formula");
    }
  }
  const auto n = shape.numel();
  run_against_copy(state, 7 * 4 * n, n, [&] { optimizer.step(); });
}

// Over the last dimension.
Tensor norm(const Tensor& x, const Tensor& weight) {
  return x * ops::rsqrt(ops::mean(ops::square(x), -1, true) + 1e-6) * weight;
}

Tensor rotated(const Tensor& x, const ops::RopeTable& table) {
  constexpr auto kHalf = kHeadDim / 2;
  const Tensor cos = ops::reshape(table.cos, {kTokens, 1, kHalf});
  const Tensor sin = ops::reshape(table.sin, {kTokens, 1, kHalf});
  const Tensor first = ops::narrow(x, 2, 0, kHalf), second = ops::narrow(x, 2, kHalf, kHalf);
  return ops::cat({first * cos - second * sin, second * cos + first * sin}, 2);
}

std::vector<Case> cases() {
  const auto h = kTokens * kHidden, r = kRows * kHidden, i = kRows * kInner,
             v = kTokens * kVocabulary, e = kTokens * kExperts, k = kRows;
  const auto plan = std::make_shared<ops::RowPlan>(
      ops::plan_routing(random_indices({kTokens, kTopK}, kExperts), kExperts));
  const Tensor targets = random_indices({kTokens}, kVocabulary);
  const auto rope = [](const Tensor& x) {
    Tensor positions = Tensor::empty({kTokens}, Dtype::kInt64);
    std::int64_t next = 0;
    for (auto& position : positions.mutable_data<std::int64_t>()) position = next++ % 512;
    return ops::rope_table(positions, kHeadDim, 1e6, x.dtype());
  };
  const auto table = std::make_shared<ops::RopeTable>(rope(Tensor::zeros({1})));
  return {
      {"exp",
       {{kRows, kInner}},
       [](const TensorList& in) { return ops::exp(in[0]); },
       [](const TensorList& in) {  // of (x / 2) twice, so that another argument is reduced
         const Tensor half = ops::exp(in[0] * 0.5);
         return half * half;
       },
       2 * i,
       3 * i},
      {"swiglu",
       {{kRows, 2 * kInner}, {kRows}},
       [](const TensorList& in) { return ops::swiglu(in[0], in[1]); },
       [](const TensorList& in) {
         const Tensor gate = ops::narrow(in[0], 1, 0, kInner);
         const Tensor y = gate / (1.0 + ops::exp(-gate)) * ops::narrow(in[0], 1, kInner, kInner);
         return y * ops::reshape(in[1], {kRows, 1});
       },
       3 * i,
       5 * i},
      {"softmax",
       {{kTokens, kVocabulary}},
       [](const TensorList& in) { return ops::softmax(in[0]); },
       [](const TensorList& in) {
         const Tensor y = ops::exp(in[0]);
         return y / ops::sum(y, 1, true);
       },
       2 * v,
       3 * v},
      {"cross_entropy",
       {{kTokens, kVocabulary}},
       [=](const TensorList& in) { return ops::cross_entropy(in[0], targets); },
       [=](const TensorList& in) {
         return ops::mean(ops::log(ops::sum(ops::exp(in[0]), 1)) - pick(in[0], targets));
       },
       v,
       2 * v},
      {"rms_norm",
       {{kTokens, kHidden}, {kHidden}},
       [](const TensorList& in) { return ops::rms_norm(in[0], in[1]); },
       [](const TensorList& in) { return norm(in[0], in[1]); },
       2 * h,
       3 * h},
      {"add_rms_norm",
       {{kTokens, kHidden}, {kTokens, kHidden}, {kHidden}},
       [](const TensorList& in) { return ops::add_rms_norm(in[0], in[1], in[2]).y; },
       [](const TensorList& in) { return norm(in[0] + in[1], in[2]); },
       4 * h,
       4 * h},
      {"rope",
       {{kTokens, kHeads, kHeadDim}},
       [=](const TensorList& in) { return ops::rope(in[0], *table); },
       [=](const TensorList& in) { return rotated(in[0], rope(in[0])); },
       2 * h,
       2 * h},
      {"rms_norm_rope",
       {{kTokens, kHeads, kHeadDim}, {kHeadDim}},
       [=](const TensorList& in) { return ops::rms_norm_rope(in[0], in[1], *table); },
       [=](const TensorList& in) { return rotated(norm(in[0], in[1]), rope(in[0])); },
       2 * h,
       3 * h},
      {"topk_softmax",
       {{kTokens, kExperts}},
       [](const TensorList& in) { return ops::topk_softmax(in[0], kTopK, true).weights; },
       [](const TensorList& in) {
         const auto chosen = ops::topk_softmax(in[0].detach(), kTopK, true).indices;
         const Tensor y = ops::exp(pick(in[0], chosen));
         return y / ops::sum(y, 1, true);
       },
       e + 3 * k,
       2 * e + 3 * k},
      {"permute_rows",
       {{kTokens, kHidden}},
       [=](const TensorList& in) { return ops::permute_rows(in[0], *plan); },
       [=](const TensorList& in) {
         return ops::embedding(divide_by_slots(plan->slot_of_row), in[0]);
       },
       h + r,
       h + r},
      {"unpermute_rows",
       {{kRows, kHidden}},
       [=](const TensorList& in) { return ops::unpermute_rows(in[0], *plan); },
       [=](const TensorList& in) {
         const Tensor slots =
             ops::reshape(ops::embedding(plan->row_of_slot, in[0]), {kTokens, kTopK, kHidden});
         return ops::sum(slots, 1);
       },
       r + h,
       h + r},
  };
}

void register_cases() {
  for (const auto& each : cases()) {
    const bool correct = error_of(each) <= 1e-4;
    for (const bool backward : {false, true}) {
      const auto name = each.name + (backward ? "/backward" : "/forward");
      benchmark::RegisterBenchmark(
          name.c_str(), [=](benchmark::State& state) { run(state, each, correct, backward); })
          ->UseManualTime()
          ->Unit(benchmark::kMicrosecond);
    }
  }
  benchmark::RegisterBenchmark("adamw", adamw)->UseManualTime()->Unit(benchmark::kMicrosecond);
}

}  // namespace
}  // namespace moegrad::bench

int main(int argc, char** argv) {
  return moegrad::bench::bench_main(argc, argv, "The ops around the matmuls, forward and backward.",
                                    {}, moegrad::bench::register_cases);
}
