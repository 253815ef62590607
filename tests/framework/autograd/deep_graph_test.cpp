// SPDX-License-Identifier: Apache-2.0
// Graphs so deep that any recursion over them would end the thread's stack.
#include <gtest/gtest.h>

#include "framework/autograd/checkpoint.h"
#include "framework/autograd/engine.h"
#include "tests/framework/autograd/test_functions.h"
#include "tests/testing.h"

namespace moegrad::deep_graph_test {
namespace {

using namespace test;

constexpr int kDepth = 100'000;

Tensor one() { return Tensor::ones({1}, Dtype::kFloat64); }

/// x + 0 + 0 + ...
Tensor chain(const Tensor& x) {
  const Tensor zero = Tensor::zeros({1}, Dtype::kFloat64);
  Tensor y = x;
  for (int i = 0; i < kDepth; ++i) y = add(y, zero);
  return y;
}

TEST(DeepGraph, BackwardAndDestructionAreNoRecursion) {
  const Tensor x = variable({1});
  chain(x).backward();
  EXPECT_EQ(x.grad().item(), 1);
}

TEST(DeepGraph, DestructionWithoutBackwardIsNoRecursion) {
  const Tensor x = variable({1});
  { const Tensor y = chain(x); }
  EXPECT_FALSE(x.grad().defined());
}

TEST(DeepGraph, EachFunctionRunsOnceOverTwoToTheNPaths) {
  const Tensor x = variable({1});
  Tensor y = x;
  for (int i = 0; i < kDepth; ++i) y = add(y, y);
  y.backward(Tensor::zeros({1}, Dtype::kFloat64));
  EXPECT_EQ(x.grad().item(), 0);
}

TEST(DeepGraph, InTwoCallsIsNoRecursion) {
  const Tensor x = variable({1}), w = one().set_requires_grad(true);
  Tensor y = x;
  for (int i = 0; i < kDepth; ++i) y = mul(y, w);
  auto weights = backward_to_inputs({y}, {one()}, {x});
  EXPECT_EQ(x.grad().item(), 1);
  EXPECT_FALSE(w.grad().defined());
  y = Tensor();
  weights.run();
  EXPECT_NEAR(w.grad().item(), kDepth * x.item(), 1e-6);
}

TEST(DeepGraph, ARetainedGraphRunsAgain) {
  const Tensor x = variable({1});
  const Tensor y = chain(x);
  y.backward({}, /*retain_graph=*/true);
  y.backward();
  EXPECT_EQ(x.grad().item(), 2);
}

TEST(DeepGraph, InsideARecomputationIsNoRecursion) {
  const Tensor x = variable({1});
  checkpoint([](const TensorList& in) -> TensorList { return {chain(in[0])}; }, {x})[0].backward();
  EXPECT_EQ(x.grad().item(), 1);
}

}  // namespace
}  // namespace moegrad::deep_graph_test
