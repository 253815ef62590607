// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/tree_sum.h"

#include "framework/runtime/error.h"
#include "tests/testing.h"

namespace moegrad::tree_sum_test {
namespace {

using namespace test;

Tensor term(std::size_t i, Dtype dtype = Dtype::kFloat32) { return randn({5, 3}, 10 + i, dtype); }

TEST(TreeSum, ShowsTheSumThatItWouldEndWith) {
  for (const auto dtype : {Dtype::kFloat32, Dtype::kBFloat16}) {
    TreeSum growing;
    for (std::size_t n = 1; n <= 9; ++n) {
      growing.push(term(n - 1, dtype));
      TreeSum whole;
      for (std::size_t i = 0; i < n; ++i) whole.push(term(i, dtype));
      EXPECT_EQ(growing.size(), static_cast<std::int64_t>(n));
      const Tensor shown = growing.sum();
      const Tensor again = growing.sum();
      EXPECT_TRUE(bitwise_equal(shown, again)) << n;
      EXPECT_TRUE(bitwise_equal(shown, whole.take())) << n;
      EXPECT_EQ(whole.size(), 0);
    }
  }
}

TEST(TreeSum, GoesOnFromASubtree) {
  TreeSum whole, first;
  for (std::size_t i = 0; i < 4; ++i) first.push(term(i));
  TreeSum resumed(first.take(), 4);
  for (std::size_t i = 0; i < 7; ++i) whole.push(term(i));
  for (std::size_t i = 4; i < 7; ++i) resumed.push(term(i));
  EXPECT_TRUE(bitwise_equal(resumed.take(), whole.take()));
}

TEST(TreeSum, OfAbsentTermsIsAbsent) {
  TreeSum sum;
  EXPECT_FALSE(sum.take().defined());
  sum.push(Tensor());
  sum.push(Tensor());
  EXPECT_FALSE(sum.sum().defined());
  sum.push(term(0));
  EXPECT_TRUE(bitwise_equal(sum.take(), term(0)));
}

TEST(TreeSum, RefusesASubtreeThatIsNone) {
  for (const std::int64_t size : {0, 3, -4}) {
    EXPECT_EQ(test::message_of<ValueError>([&] { TreeSum(term(0), size); }),
              "tree_sum: size must be a power of two, got " + std::to_string(size));
  }
}

}  // namespace
}  // namespace moegrad::tree_sum_test
