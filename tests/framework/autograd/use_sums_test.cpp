// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/use_sums.h"

#include <gtest/gtest.h>

#include "tests/testing.h"

namespace moegrad::use_sums_test {
namespace {

using namespace test;

Tensor term(int use, int i) {
  return randn({33}, static_cast<std::uint64_t>(10 * use + i), Dtype::kFloat32);
}

Tensor sum(const Tensor& a, const Tensor& b) {
  Tensor both = clone(a);
  add_(both, b);
  return both;
}

TEST(SumOfUses, SkipsAbsentOnesAndWritesToNoneThatIsShared) {
  const Tensor a = term(0, 0), b = term(1, 0), c = term(2, 0);
  const Tensor before = clone(a);
  EXPECT_TRUE(bitwise_equal(sum_of_uses({a, Tensor(), b, c}), sum(sum(a, b), c)));
  EXPECT_TRUE(bitwise_equal(a, before));
  EXPECT_TRUE(sum_of_uses({Tensor(), a, Tensor()}).is(a));
  EXPECT_FALSE(sum_of_uses({Tensor(), Tensor()}).defined());
}

// As if the use had been there from the beginning.
TEST(UseSums, TakeAUseThatComesLaterAtItsPlace) {
  UseSums sums;
  TreeSum first, second;
  for (int i = 0; i < 9; ++i) {
    const bool has_second = i >= 3 && i != 7;
    TensorList terms = {term(0, i)};
    if (has_second) terms.push_back(term(1, i));
    if (i == 2) terms.resize(3);
    sums.push(std::move(terms));
    first.push(term(0, i));
    second.push(has_second ? term(1, i) : Tensor());
    const Tensor expected = i < 3 ? first.sum() : sum(first.sum(), second.sum());
    EXPECT_TRUE(bitwise_equal(sums.sum(), expected)) << i;
    EXPECT_EQ(sums.size(), i + 1);
  }
  const auto taken = sums.take();
  ASSERT_EQ(taken.size(), 2U);
  EXPECT_TRUE(bitwise_equal(taken[0], first.take()));
  EXPECT_TRUE(bitwise_equal(taken[1], second.take()));
  EXPECT_EQ(sums.size(), 0);
  EXPECT_EQ(sums.take().size(), 1U);
}

TEST(UseSums, KeepTheirPositionWhenTheyAreDropped) {
  UseSums sums;
  for (int i = 0; i < 3; ++i) sums.push({term(0, i), term(1, i)});
  sums.drop();
  EXPECT_EQ(sums.size(), 3);
  EXPECT_FALSE(sums.sum().defined());
  TreeSum expected = absent_terms(3);
  for (int i = 3; i < 6; ++i) {
    sums.push({term(0, i)});
    expected.push(term(0, i));
  }
  EXPECT_TRUE(bitwise_equal(sums.sum(), expected.sum()));
}

}  // namespace
}  // namespace moegrad::use_sums_test
