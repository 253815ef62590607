// SPDX-License-Identifier: Apache-2.0
#include "ops/linear_cross_entropy.h"

#include "framework/runtime/rank_context.h"
#include "ops/elementwise.h"
#include "ops/linear.h"
#include "tests/testing.h"

namespace moegrad::ops::linear_cross_entropy_test {
namespace {

using namespace test;

struct Inputs {
  Inputs(std::int64_t tokens, std::int64_t hidden, std::int64_t vocabulary, Dtype dtype)
      : x(randn({tokens, hidden}, 1, dtype, true)),
        weight(randn({vocabulary, hidden}, 2, dtype, true)),
        targets(Tensor::empty({tokens}, Dtype::kInt64)) {
    std::int64_t t = 0;
    for (auto& target : targets.mutable_data<std::int64_t>()) {
      target = t % 5 == 3 ? -100 : t * 7 % vocabulary;
      ++t;
    }
  }
  Tensor x, weight, targets;
};

// Loss and gradients, of a loss that reaches the op with a cotangent other than one.
TensorList run(const Inputs& in, bool fused) {
  in.x.set_grad({});
  in.weight.set_grad({});
  const CrossEntropyOptions options{.denominator = 123.0};
  const Tensor loss =
      fused ? linear_cross_entropy(in.x, in.weight, in.targets, options)
            : cross_entropy(linear(in.x, in.weight, kLinearCrossEntropyRows), in.targets, options);
  mul(loss, 0.7).backward();
  return {loss.detach(), in.x.grad(), in.weight.grad()};
}

TEST(LinearCrossEntropy, HasTheBitsOfLinearAndCrossEntropy) {
  for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    for (const std::int64_t tokens : {1L, 7L, kLinearCrossEntropyRows, 2 * kLinearCrossEntropyRows,
                                      2 * kLinearCrossEntropyRows + 61}) {
      const Inputs in(tokens, 24, 37, dtype);
      const auto fused = run(in, true), plain = run(in, false);
      for (std::size_t i = 0; i < fused.size(); ++i) {
        EXPECT_TRUE(bitwise_equal(fused[i], plain[i])) << tokens << " tokens, result " << i;
      }
    }
  }
}

// The number is part of the bits of every run.
TEST(LinearCrossEntropy, AddsTheGradientsOfRunsOf512Tokens) {
  const Inputs in(1300, 8, 40, Dtype::kFloat32);
  const auto fused = run(in, true);
  in.weight.set_grad({});
  mul(cross_entropy(linear(in.x, in.weight, 512), in.targets, {.denominator = 123.0}), 0.7)
      .backward();
  EXPECT_TRUE(bitwise_equal(fused[2], in.weight.grad()));
}

TEST(LinearCrossEntropy, GivesZerosWithoutTokens) {
  for (int i = 0; i < 4; ++i) Tensor::full({40, 8}, 7.0);  // what freed memory may hold
  const Tensor x = Tensor::zeros({0, 8});
  const Tensor weight = Tensor::ones({40, 8}).set_requires_grad(true);
  linear_cross_entropy(x, weight, Tensor::empty({0}, Dtype::kInt64), {.denominator = 1.0})
      .backward();
  EXPECT_TRUE(bitwise_equal(weight.grad(), Tensor::zeros({40, 8})));
}

TEST(LinearCrossEntropy, NeverHoldsAllLogits) {
  const Inputs in(4 * kLinearCrossEntropyRows, 8, 300, Dtype::kFloat32);
  auto& arena = *RankContext::current().arena();
  arena.reset_peak();
  const auto before = arena.live().total();
  run(in, true);
  const auto logits = in.x.dim(0) * in.weight.dim(0) * 4;
  EXPECT_LT(arena.peak().total() - before, logits / 2);
  arena.reset_peak();
  run(in, false);
  EXPECT_GT(arena.peak().total() - before, logits);
}

}  // namespace
}  // namespace moegrad::ops::linear_cross_entropy_test
