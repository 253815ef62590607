// SPDX-License-Identifier: Apache-2.0
#include "fsdp/sharded_gradients.h"

#include <bit>

#include "framework/runtime/rank_context.h"
#include "tests/testing.h"

namespace moegrad::fsdp::sharded_gradients_test {
namespace {

using namespace test;

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

std::int64_t gradient_bytes() {
  return RankContext::current().arena()->live()[MemoryTag::kGradients];
}

TEST(ShardedGradients, ShowTheTreeAfterEveryTermAndKeepNothingElseAtPowersOfTwo) {
  const Tensor parameter = randn({6}, 1, Dtype::kFloat32, true);
  const auto before = gradient_bytes();
  ShardedGradients gradients({parameter}, std::nullopt);
  for (std::size_t n = 1; n <= 9; ++n) {
    gradients.add({term(n - 1)});
    EXPECT_TRUE(bitwise_equal(parameter.grad(), tree(0, n))) << n;
    const auto partials = std::popcount(n);
    EXPECT_EQ(gradient_bytes() - before, (partials == 1 ? 1 : partials + 1) * kBytes) << n;
  }
}

TEST(ShardedGradients, BeginAgainWhenCleared) {
  for (const std::size_t n : {1U, 2U, 3U, 4U, 7U}) {
    const Tensor parameter = randn({6}, 1, Dtype::kFloat32, true);
    ShardedGradients gradients({parameter}, std::nullopt);
    for (std::size_t i = 0; i < n; ++i) gradients.add({term(i)});
    parameter.set_grad(Tensor());
    for (std::size_t i = 0; i < 3; ++i) gradients.add({term(10 + i)});
    EXPECT_TRUE(bitwise_equal(parameter.grad(), tree(10, 13))) << n;
  }
}

// As an optimizer over some of a group's parameters does; the others go on.
TEST(ShardedGradients, BeginAgainForTheOneThatWasCleared) {
  for (const std::size_t n : {1U, 2U, 3U, 4U, 5U, 7U}) {
    const Tensor cleared = randn({6}, 1, Dtype::kFloat32, true);
    const Tensor other = randn({6}, 2, Dtype::kFloat32, true);
    ShardedGradients gradients({cleared, other}, std::nullopt);
    for (std::size_t i = 0; i < n; ++i) gradients.add({term(i), term(i)});
    cleared.set_grad(Tensor());
    gradients.add({term(10), term(10)});
    EXPECT_TRUE(bitwise_equal(cleared.grad(), term(10))) << n;
    Tensor all = tree(0, n);
    add_(all, term(10));
    EXPECT_TRUE(test::all_close(other.grad(), all, 1e-6, 1e-6)) << n;
  }
}

TEST(ShardedGradients, GoOnFromWhatSomebodyLeftThere) {
  for (const bool in_place : {false, true}) {
    for (const std::size_t n : {1U, 2U, 3U, 5U}) {
      const Tensor parameter = randn({6}, 1, Dtype::kFloat32, true);
      ShardedGradients gradients({parameter}, std::nullopt);
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

TEST(ShardedGradients, TermsThatAreAbsentKeepTheirPosition) {
  const Tensor a = randn({6}, 1, Dtype::kFloat32, true);
  const Tensor b = randn({6}, 2, Dtype::kFloat32, true);
  ShardedGradients gradients({a, b}, std::nullopt);
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

TEST(ShardedGradients, SumInTheReducedDtypeAndShowTheParametersOwn) {
  const Tensor parameter = randn({6}, 1, Dtype::kFloat32, true);
  ShardedGradients gradients({parameter}, Dtype::kBFloat16);
  for (std::size_t n = 1; n <= 9; ++n) {
    gradients.add({term(n - 1, Dtype::kBFloat16)});
    EXPECT_TRUE(
        bitwise_equal(parameter.grad(), to_dtype(tree(0, n, Dtype::kBFloat16), Dtype::kFloat32)))
        << n;
  }
}

}  // namespace
}  // namespace moegrad::fsdp::sharded_gradients_test
