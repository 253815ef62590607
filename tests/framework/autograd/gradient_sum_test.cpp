// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/gradient_sum.h"

#include <gtest/gtest.h>

#include <bit>

#include "framework/runtime/rank_context.h"
#include "tests/testing.h"

namespace moegrad::gradient_sum_test {
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

void push(GradientSum& tree, const Tensor& parameter, const Tensor& leaf) {
  if (leaf.defined()) {
    const MemoryTagGuard tag(MemoryTag::kGradients);
    parameter.set_grad(clone(leaf));
  }
  tree.push();
  EXPECT_FALSE(parameter.grad().defined());
}

TEST(GradientSum, EqualsTheRecursiveTreeBitwise) {
  for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    for (std::size_t count = 1; count <= 9; ++count) {
      const Tensor parameter = randn({5, 7}, 1, dtype, /*requires_grad=*/true);
      const auto leaves = random_leaves(count, {5, 7}, dtype);
      GradientSum tree({parameter});
      for (const auto& leaf : leaves) push(tree, parameter, leaf);
      EXPECT_EQ(tree.size(), static_cast<std::int64_t>(count));
      tree.finish();
      EXPECT_EQ(tree.size(), 0);
      EXPECT_TRUE(bitwise_equal(parameter.grad(), reference(leaves, 0, count, dtype))) << count;
    }
  }
}

TEST(GradientSum, SumsTheGradientsOfABFloat16LeafInFloat32) {
  const Tensor parameter = randn({5, 7}, 1, Dtype::kBFloat16, /*requires_grad=*/true);
  const auto leaves = random_leaves(5, {5, 7}, Dtype::kFloat32);
  GradientSum tree({parameter});
  for (const auto& leaf : leaves) push(tree, parameter, leaf);
  tree.finish();
  EXPECT_TRUE(bitwise_equal(parameter.grad(), reference(leaves, 0, 5, Dtype::kFloat32)));
  parameter.set_grad({});
  GradientSum shown({parameter});  // in grad() after each
  for (const auto& leaf : leaves) shown.add({clone(leaf)});
  EXPECT_TRUE(bitwise_equal(parameter.grad(), reference(leaves, 0, 5, Dtype::kFloat32)));
}

TEST(GradientSum, IsNotARunningSum) {
  const Tensor parameter = randn({64}, 1, Dtype::kFloat32, true);
  const auto leaves = random_leaves(8, {64}, Dtype::kFloat32);
  GradientSum tree({parameter});
  Tensor sum = clone(leaves[0]);
  for (std::size_t i = 0; i < 8; ++i) {
    push(tree, parameter, leaves[i]);
    if (i > 0) add_(sum, leaves[i]);
  }
  tree.finish();
  EXPECT_FALSE(bitwise_equal(parameter.grad(), sum));
}

TEST(GradientSum, RoundsEveryNodeToBFloat16) {
  for (std::size_t count = 1; count <= 9; ++count) {
    const Tensor parameter = randn({33}, 1, Dtype::kFloat32, true);
    const auto leaves = random_leaves(count, {33}, Dtype::kFloat32);
    GradientSum tree({parameter}, Dtype::kBFloat16);
    for (const auto& leaf : leaves) push(tree, parameter, leaf);
    tree.finish();
    EXPECT_EQ(parameter.grad().dtype(), Dtype::kFloat32);
    EXPECT_TRUE(bitwise_equal(parameter.grad(), reference(leaves, 0, count, Dtype::kBFloat16)))
        << count;
  }
}

TEST(GradientSum, AbsentLeavesKeepTheirPosition) {
  for (unsigned present = 0; present < 64; ++present) {
    const Tensor parameter = randn({3}, 1, Dtype::kFloat32, true);
    auto leaves = random_leaves(6, {3}, Dtype::kFloat32);
    for (unsigned i = 0; i < 6; ++i) {
      if ((present >> i & 1U) == 0) leaves[i] = Tensor();
    }
    GradientSum tree({parameter});
    for (const auto& leaf : leaves) push(tree, parameter, leaf);
    tree.finish();
    const Tensor expected = reference(leaves, 0, 6, Dtype::kFloat32);
    ASSERT_EQ(parameter.grad().defined(), expected.defined()) << present;
    if (expected.defined()) {
      EXPECT_TRUE(bitwise_equal(parameter.grad(), expected)) << present;
    }
  }
}

TEST(GradientSum, TermsThatAreDroppedKeepTheirPosition) {
  for (std::size_t dropped = 1; dropped < 6; ++dropped) {
    const Tensor parameter = randn({3}, 1, Dtype::kFloat32, true);
    auto leaves = random_leaves(6, {3}, Dtype::kFloat32);
    GradientSum tree({parameter});
    for (std::size_t i = 0; i < 6; ++i) {
      if (i == dropped) tree.drop(0);
      push(tree, parameter, leaves[i]);
    }
    tree.finish();
    for (std::size_t i = 0; i < dropped; ++i) leaves[i] = Tensor();
    EXPECT_TRUE(bitwise_equal(parameter.grad(), reference(leaves, 0, 6, Dtype::kFloat32)))
        << dropped;
  }
}

TEST(GradientSum, ParametersAreIndependent) {
  const Tensor a = randn({2}, 1, Dtype::kFloat32, true);
  const Tensor b = randn({3}, 2, Dtype::kFloat64, true);
  GradientSum tree({a, b});
  a.set_grad(Tensor::ones({2}));
  tree.push();
  b.set_grad(Tensor::full({3}, 2, Dtype::kFloat64));
  tree.push();
  tree.finish();
  EXPECT_TRUE(bitwise_equal(a.grad(), Tensor::ones({2})));
  EXPECT_TRUE(bitwise_equal(b.grad(), Tensor::full({3}, 2, Dtype::kFloat64)));
}

TEST(GradientSum, KeepsOnePartialPerSetBit) {
  const Tensor parameter = randn({16}, 1, Dtype::kFloat32, true);
  for (const auto node_dtype : {Dtype::kFloat32, Dtype::kBFloat16}) {
    const auto node_bytes = 16 * size_of(node_dtype);
    const auto before = gradient_bytes();
    GradientSum tree({parameter}, node_dtype);
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

TEST(GradientSum, NeverHasMoreThanLog2PlusOnePartialsEvenWhilePushing) {
  const Tensor parameter = randn({16}, 1, Dtype::kFloat32, true);
  auto& arena = *RankContext::current().arena();
  const auto leaves = random_leaves(16, {16}, Dtype::kFloat32);
  const auto before = gradient_bytes();
  arena.reset_peak();
  GradientSum tree({parameter});
  for (const auto& leaf : leaves) push(tree, parameter, leaf);
  EXPECT_EQ(arena.peak(MemoryTag::kGradients) - before, 5 * 64);
}

TEST(GradientSum, LeavesAGradientThatIsAlsoHeldElsewhereAlone) {
  const Tensor parameter = randn({4}, 1, Dtype::kFloat32, true);
  const Tensor held = Tensor::ones({4});
  GradientSum tree({parameter});
  for (int i = 0; i < 2; ++i) {
    parameter.set_grad(held);
    tree.push();
  }
  tree.finish();
  EXPECT_TRUE(bitwise_equal(held, Tensor::ones({4})));
  EXPECT_TRUE(bitwise_equal(parameter.grad(), Tensor::full({4}, 2)));
}

TEST(GradientSum, CanBeUsedAgainAfterFinish) {
  const Tensor parameter = randn({4}, 1, Dtype::kFloat32, true);
  GradientSum tree({parameter});
  tree.finish();
  EXPECT_FALSE(parameter.grad().defined());
  for (int step = 0; step < 2; ++step) {
    for (int i = 0; i < 3; ++i) push(tree, parameter, Tensor::ones({4}));
    tree.finish();
    EXPECT_TRUE(bitwise_equal(parameter.grad(), Tensor::full({4}, 3)));
    parameter.set_grad(Tensor());
  }
}

TEST(GradientSum, RefusesToOverwriteAGradientThatWasNotPushed) {
  Tensor parameter = randn({4}, 1, Dtype::kFloat32, true);
  parameter.storage().set_name("model.norm.weight");
  GradientSum tree({parameter});
  parameter.set_grad(Tensor::ones({4}));
  EXPECT_EQ(message_of<Error>([&] { tree.finish(); }),
            "gradient_sum: finish() would overwrite the gradient of 'model.norm.weight', which "
            "was not pushed");
}

TEST(GradientSum, RefusesWhatHasNoGradientOfItsOwn) {
  const Tensor w = randn({2}, 1, Dtype::kFloat32, true);
  EXPECT_EQ(message_of<ValueError>([&] {
              GradientSum({w, w});
            }),
            "gradient_sum: parameter 1 must be given once");
  for (const Tensor& other : {Tensor(), w.slice(0, 0, 1)}) {
    EXPECT_EQ(message_of<Error>([&] {
                GradientSum({w, other});
              }),
              "gradient_sum: parameter 1 must be a leaf");
  }
}

TEST(GradientSum, RefusesOtherNumbersOfTerms) {
  GradientSum sum({randn({2}, 1, Dtype::kFloat32, true)});
  const std::string none = "gradient_sum: must be given a term for each of 1 parameters, got 0";
  EXPECT_EQ(message_of<ValueError>([&] { sum.push(TensorList()); }), none);
  EXPECT_EQ(message_of<ValueError>([&] { sum.add({}); }), none);
  EXPECT_EQ(message_of<ValueError>([&] { sum.drop(1); }),
            "gradient_sum: parameter must be below 1, got 1");
}

TEST(GradientSum, RefusesIntegerNodes) {
  EXPECT_EQ(message_of<DtypeError>([] { GradientSum tree({}, Dtype::kInt64); }),
            "gradient_sum: nodes must be of a floating dtype, got int64");
}

// --- sums that grad() shows

constexpr std::int64_t kBytes = 6 * 4;  // of one float32 [6]

Tensor term(std::size_t i, Dtype dtype = Dtype::kFloat32) {
  const MemoryTagGuard tag(MemoryTag::kGradients);
  return randn({6}, 20 + i, dtype);
}

/// The tree over terms [first, last).
Tensor tree(std::size_t first, std::size_t last, Dtype dtype = Dtype::kFloat32) {
  TreeSum sum;
  for (auto i = first; i < last; ++i) sum.push(term(i, dtype));
  return sum.take();
}

TEST(SumsThatGradShows, ShowTheTreeAfterEveryTermAndKeepNothingElseAtPowersOfTwo) {
  const Tensor parameter = randn({6}, 1, Dtype::kFloat32, true);
  const auto before = gradient_bytes();
  GradientSum gradients({parameter});
  for (std::size_t n = 1; n <= 9; ++n) {
    gradients.add({term(n - 1)});
    EXPECT_TRUE(bitwise_equal(parameter.grad(), tree(0, n))) << n;
    const auto partials = std::popcount(n);
    EXPECT_EQ(gradient_bytes() - before, (partials == 1 ? 1 : partials + 1) * kBytes) << n;
  }
}

TEST(SumsThatGradShows, BeginAgainWhenCleared) {
  for (const std::size_t n : {1U, 2U, 3U, 4U, 7U}) {
    const Tensor parameter = randn({6}, 1, Dtype::kFloat32, true);
    GradientSum gradients({parameter});
    for (std::size_t i = 0; i < n; ++i) gradients.add({term(i)});
    parameter.set_grad(Tensor());
    for (std::size_t i = 0; i < 3; ++i) gradients.add({term(10 + i)});
    EXPECT_TRUE(bitwise_equal(parameter.grad(), tree(10, 13))) << n;
  }
}

// As an optimizer over some of a group's parameters does; the others go on.
TEST(SumsThatGradShows, BeginAgainForTheOneThatWasCleared) {
  for (const std::size_t n : {1U, 2U, 3U, 4U, 5U, 7U}) {
    const Tensor cleared = randn({6}, 1, Dtype::kFloat32, true);
    const Tensor other = randn({6}, 2, Dtype::kFloat32, true);
    GradientSum gradients({cleared, other});
    for (std::size_t i = 0; i < n; ++i) gradients.add({term(i), term(i)});
    cleared.set_grad(Tensor());
    gradients.add({term(10), term(10)});
    EXPECT_TRUE(bitwise_equal(cleared.grad(), term(10))) << n;
    Tensor all = tree(0, n);
    add_(all, term(10));
    EXPECT_TRUE(test::all_close(other.grad(), all, 1e-6, 1e-6)) << n;
  }
}

TEST(SumsThatGradShows, GoOnFromWhatSomebodyLeftThere) {
  for (const bool in_place : {false, true}) {
    for (const std::size_t n : {1U, 2U, 3U, 5U}) {
      const Tensor parameter = randn({6}, 1, Dtype::kFloat32, true);
      GradientSum gradients({parameter});
      for (std::size_t i = 0; i < n; ++i) gradients.add({term(i)});
      Tensor left = Tensor::full({6}, 3.0);
      if (in_place) {
        Tensor grad = parameter.grad();
        fill_(grad, 3.0);
      } else {
        parameter.set_grad(clone(left));
      }
      gradients.add({term(10)});
      add_(left, term(10));
      EXPECT_TRUE(bitwise_equal(parameter.grad(), left)) << n << ' ' << in_place;
    }
  }
}

TEST(SumsThatGradShows, TermsThatAreAbsentKeepTheirPosition) {
  const Tensor a = randn({6}, 1, Dtype::kFloat32, true);
  const Tensor b = randn({6}, 2, Dtype::kFloat32, true);
  GradientSum gradients({a, b});
  TreeSum expected;
  for (std::size_t i = 0; i < 6; ++i) {
    gradients.add({term(i), i % 3 == 0 ? Tensor() : term(i)});
    expected.push(i % 3 == 0 ? Tensor() : term(i));
    EXPECT_TRUE(bitwise_equal(a.grad(), tree(0, i + 1))) << i;
    const Tensor sum = expected.sum();
    ASSERT_EQ(b.grad().defined(), sum.defined()) << i;
    if (sum.defined()) {
      EXPECT_TRUE(bitwise_equal(b.grad(), sum)) << i;
    }
  }
}

TEST(SumsThatGradShows, SumInTheReducedDtypeAndShowTheParametersOwn) {
  const Tensor parameter = randn({6}, 1, Dtype::kFloat32, true);
  GradientSum gradients({parameter}, Dtype::kBFloat16);
  for (std::size_t n = 1; n <= 9; ++n) {
    gradients.add({term(n - 1, Dtype::kBFloat16)});
    EXPECT_TRUE(
        bitwise_equal(parameter.grad(), to_dtype(tree(0, n, Dtype::kBFloat16), Dtype::kFloat32)))
        << n;
  }
}

}  // namespace
}  // namespace moegrad::gradient_sum_test
