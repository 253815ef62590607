// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/gradient_tree.h"

#include <gtest/gtest.h>

#include <bit>

#include "framework/runtime/rank_context.h"
#include "tests/testing.h"

namespace moegrad::gradient_tree_test {
namespace {

using namespace test;

Tensor round_to(const Tensor& tensor, Dtype dtype) {
  return to_dtype(to_dtype(tensor, dtype), tensor.dtype());
}

// The tree as Note [Tree of successive terms] defines it, top down; undefined tensors are absent.
Tensor reference(const TensorList& leaves, std::size_t lo, std::size_t hi, Dtype node_dtype) {
  if (hi - lo == 1) return leaves[lo].defined() ? round_to(leaves[lo], node_dtype) : Tensor();
  const auto mid = lo + std::bit_floor(hi - lo - 1);
  Tensor a = reference(leaves, lo, mid, node_dtype);
  const Tensor b = reference(leaves, mid, hi, node_dtype);
  if (!a.defined()) return b;
  if (!b.defined()) return a;
  add_(a, b);
  return round_to(a, node_dtype);
}

TensorList random_leaves(std::size_t count, const Shape& shape, Dtype dtype) {
  TensorList leaves;
  for (std::size_t i = 0; i < count; ++i) leaves.push_back(randn(shape, 10 + i, dtype));
  return leaves;
}

std::int64_t gradient_bytes() {
  return RankContext::current().arena()->live()[MemoryTag::kGradients];
}

void push(GradientTree& tree, const Tensor& parameter, const Tensor& leaf) {
  if (leaf.defined()) {
    const MemoryTagGuard tag(MemoryTag::kGradients);
    parameter.set_grad(clone(leaf));
  }
  tree.push();
  EXPECT_FALSE(parameter.grad().defined());
}

TEST(GradientTree, EqualsTheRecursiveTreeBitwise) {
  for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    for (std::size_t count = 1; count <= 9; ++count) {
      const Tensor parameter = randn({5, 7}, 1, dtype, /*requires_grad=*/true);
      const auto leaves = random_leaves(count, {5, 7}, dtype);
      GradientTree tree({parameter});
      for (const auto& leaf : leaves) push(tree, parameter, leaf);
      EXPECT_EQ(tree.size(), static_cast<std::int64_t>(count));
      tree.finish();
      EXPECT_EQ(tree.size(), 0);
      EXPECT_TRUE(bitwise_equal(parameter.grad(), reference(leaves, 0, count, dtype))) << count;
    }
  }
}

TEST(GradientTree, IsNotARunningSum) {
  const Tensor parameter = randn({64}, 1, Dtype::kFloat32, true);
  const auto leaves = random_leaves(8, {64}, Dtype::kFloat32);
  GradientTree tree({parameter});
  Tensor sum = clone(leaves[0]);
  for (std::size_t i = 0; i < 8; ++i) {
    push(tree, parameter, leaves[i]);
    if (i > 0) add_(sum, leaves[i]);
  }
  tree.finish();
  EXPECT_FALSE(bitwise_equal(parameter.grad(), sum));
}

TEST(GradientTree, RoundsEveryNodeToBFloat16) {
  for (std::size_t count = 1; count <= 9; ++count) {
    const Tensor parameter = randn({33}, 1, Dtype::kFloat32, true);
    const auto leaves = random_leaves(count, {33}, Dtype::kFloat32);
    GradientTree tree({parameter}, Dtype::kBFloat16);
    for (const auto& leaf : leaves) push(tree, parameter, leaf);
    tree.finish();
    EXPECT_EQ(parameter.grad().dtype(), Dtype::kFloat32);
    EXPECT_TRUE(bitwise_equal(parameter.grad(), reference(leaves, 0, count, Dtype::kBFloat16)))
        << count;
  }
}

TEST(GradientTree, AbsentLeavesKeepTheirPosition) {
  for (unsigned present = 0; present < 64; ++present) {
    const Tensor parameter = randn({3}, 1, Dtype::kFloat32, true);
    auto leaves = random_leaves(6, {3}, Dtype::kFloat32);
    for (unsigned i = 0; i < 6; ++i) {
      if ((present >> i & 1U) == 0) leaves[i] = Tensor();
    }
    GradientTree tree({parameter});
    for (const auto& leaf : leaves) push(tree, parameter, leaf);
    tree.finish();
    const Tensor expected = reference(leaves, 0, 6, Dtype::kFloat32);
    ASSERT_EQ(parameter.grad().defined(), expected.defined()) << present;
    if (expected.defined()) {
      EXPECT_TRUE(bitwise_equal(parameter.grad(), expected)) << present;
    }
  }
}

TEST(GradientTree, ParametersAreIndependent) {
  const Tensor a = randn({2}, 1, Dtype::kFloat32, true);
  const Tensor b = randn({3}, 2, Dtype::kFloat64, true);
  GradientTree tree({a, b});
  a.set_grad(Tensor::ones({2}));
  tree.push();
  b.set_grad(Tensor::full({3}, 2, Dtype::kFloat64));
  tree.push();
  tree.finish();
  EXPECT_TRUE(bitwise_equal(a.grad(), Tensor::ones({2})));
  EXPECT_TRUE(bitwise_equal(b.grad(), Tensor::full({3}, 2, Dtype::kFloat64)));
}

TEST(GradientTree, KeepsOnePartialPerSetBit) {
  const Tensor parameter = randn({16}, 1, Dtype::kFloat32, true);
  for (const auto node_dtype : {Dtype::kFloat32, Dtype::kBFloat16}) {
    const auto node_bytes = 16 * size_of(node_dtype);
    const auto before = gradient_bytes();
    GradientTree tree({parameter}, node_dtype);
    for (std::size_t n = 1; n <= 16; ++n) {
      push(tree, parameter, randn({16}, n, Dtype::kFloat32));
      EXPECT_EQ(gradient_bytes() - before, std::popcount(n) * node_bytes) << n;
    }
    tree.finish();
    EXPECT_EQ(gradient_bytes() - before, 16 * 4);
    parameter.set_grad(Tensor());
    EXPECT_EQ(gradient_bytes(), before);
  }
}

TEST(GradientTree, NeverHasMoreThanLog2PlusOnePartialsEvenWhilePushing) {
  const Tensor parameter = randn({16}, 1, Dtype::kFloat32, true);
  auto& arena = *RankContext::current().arena();
  const auto leaves = random_leaves(16, {16}, Dtype::kFloat32);
  const auto before = gradient_bytes();
  arena.reset_peak();
  GradientTree tree({parameter});
  for (const auto& leaf : leaves) push(tree, parameter, leaf);
  EXPECT_EQ(arena.peak(MemoryTag::kGradients) - before, 5 * 64);
}

TEST(GradientTree, LeavesAGradientThatIsAlsoHeldElsewhereAlone) {
  const Tensor parameter = randn({4}, 1, Dtype::kFloat32, true);
  const Tensor held = Tensor::ones({4});
  GradientTree tree({parameter});
  for (int i = 0; i < 2; ++i) {
    parameter.set_grad(held);
    tree.push();
  }
  tree.finish();
  EXPECT_TRUE(bitwise_equal(held, Tensor::ones({4})));
  EXPECT_TRUE(bitwise_equal(parameter.grad(), Tensor::full({4}, 2)));
}

TEST(GradientTree, CanBeUsedAgainAfterFinish) {
  const Tensor parameter = randn({4}, 1, Dtype::kFloat32, true);
  GradientTree tree({parameter});
  tree.finish();
  EXPECT_FALSE(parameter.grad().defined());
  for (int step = 0; step < 2; ++step) {
    for (int i = 0; i < 3; ++i) push(tree, parameter, Tensor::ones({4}));
    tree.finish();
    EXPECT_TRUE(bitwise_equal(parameter.grad(), Tensor::full({4}, 3)));
    parameter.set_grad(Tensor());
  }
}

TEST(GradientTree, RefusesToOverwriteAGradientThatWasNotPushed) {
  Tensor parameter = randn({4}, 1, Dtype::kFloat32, true);
  parameter.storage().set_name("model.norm.weight");
  GradientTree tree({parameter});
  parameter.set_grad(Tensor::ones({4}));
  EXPECT_EQ(message_of<Error>([&] { tree.finish(); }),
            "gradient_tree: finish() would overwrite the gradient of 'model.norm.weight', which "
            "was not pushed");
}

TEST(GradientTree, RefusesIntegerNodes) {
  EXPECT_EQ(message_of<DtypeError>([] { GradientTree tree({}, Dtype::kInt64); }),
            "gradient_tree: nodes must be of a floating dtype, got int64");
}

}  // namespace
}  // namespace moegrad::gradient_tree_test
