// SPDX-License-Identifier: Apache-2.0
#include "ops/split_cat.h"

#include <functional>
#include <vector>

#include "ops/views.h"
#include "tests/ops/counting.h"
#include "tests/testing.h"

namespace moegrad::ops::split_cat_test {
namespace {

using namespace test;

TEST(SplitCat, SplitAndChunkTakeRanges) {
  const Tensor x = counting({2, 5});
  const auto pieces = split(x, 2, 1);
  ASSERT_EQ(pieces.size(), 3U);
  EXPECT_TRUE(shares_storage(pieces[1], x));
  EXPECT_TRUE(holds(pieces[2], {2, 1}, {4, 9}));
  EXPECT_TRUE(bitwise_equal(cat(pieces, 1), x));
  EXPECT_TRUE(holds(chunk(x, 2, 0)[1], {1, 5}, {5, 6, 7, 8, 9}));
  ASSERT_EQ(split(Tensor::zeros({0, 2}), 4, 0).size(), 1U);
}

TEST(SplitCat, SizesInBracesAreSizes) {
  const auto pieces = split(counting({2, 5}), {1, 4}, -1);
  ASSERT_EQ(pieces.size(), 2U);
  EXPECT_TRUE(holds(pieces[1], {2, 4}, {1, 2, 3, 4, 6, 7, 8, 9}));
  EXPECT_EQ(split(counting({6}), {6}, 0).size(), 1U);
  EXPECT_THROW(split(counting({6}), {3}, 0), ShapeError);  // one size, not pieces of it
}

TEST(SplitCat, CatAndStackJoin) {
  const Tensor x = counting({2, 2}), y = counting({2, 1});
  EXPECT_TRUE(holds(cat({x, y, x}, 1), {2, 5}, {0, 1, 0, 0, 1, 2, 3, 1, 2, 3}));
  EXPECT_TRUE(holds(cat({x, transpose(x, 0, 1)}, 0), {4, 2}, {0, 1, 2, 3, 0, 2, 1, 3}));
  EXPECT_TRUE(bitwise_equal(cat({x, Tensor::zeros({0, 2}, Dtype::kFloat64)}, 0), x));
  EXPECT_TRUE(holds(stack({x, x}, -1), {2, 2, 2}, {0, 0, 1, 1, 2, 2, 3, 3}));
  const Tensor i = Tensor::from<std::int64_t>({4, 5}, {2});
  EXPECT_TRUE(bitwise_equal(cat({i, i}, 0), Tensor::from<std::int64_t>({4, 5, 4, 5}, {4})));
}

// More than a Function takes: in runs of 64, and runs of runs.
TEST(SplitCat, CatAndStackJoinAnyNumber) {
  for (const std::int64_t n : {64, 65, 130, 4097}) {
    TensorList pieces;
    std::vector<double> expected;
    for (std::int64_t i = 0; i < n; ++i) {
      pieces.push_back(Tensor::full({1, 1 + i % 2}, static_cast<double>(i), Dtype::kFloat64));
      pieces.back().set_requires_grad(true);
      expected.insert(expected.end(), static_cast<std::size_t>(1 + i % 2), static_cast<double>(i));
    }
    const auto columns = std::ssize(expected);
    const Tensor joined = cat(pieces, 1);
    EXPECT_TRUE(bitwise_equal(joined.detach(), Tensor::from(expected, {1, columns})));
    joined.backward(Tensor::from(expected, {1, columns}));
    for (std::int64_t i = 0; i < n; ++i) {
      const Tensor& piece = pieces[static_cast<std::size_t>(i)];
      ASSERT_TRUE(bitwise_equal(piece.grad(), piece.detach())) << i;
    }
  }
  EXPECT_EQ(stack(TensorList(100, Tensor::ones({3})), 0).shape(), (Shape{100, 3}));
}

TEST(SplitCat, GradientsMatchFiniteDifferences) {
  const std::vector<std::function<TensorList(const Tensor&)>> ops{
      [](const Tensor& x) { return split(x, 2, 1); },
      [](const Tensor& x) { return chunk(x, 2, -1); },
      [](const Tensor& x) {
        return TensorList{cat({x, narrow(x, 1, 0, 1), x}, 1)};
      },
      [](const Tensor& x) {
        return TensorList{stack({x, x}, 1)};
      },
  };
  for (std::size_t i = 0; i < ops.size(); ++i) {
    EXPECT_TRUE(
        gradients_agree([&](const TensorList& in) { return ops[i](in[0]); }, {variable({2, 3, 2})}))
        << "op " << i;
  }
}

TEST(SplitCat, GradientsOfSeveralInputsReachEach) {
  EXPECT_TRUE(gradients_agree(
      [](const TensorList& in) -> TensorList {
        return {cat(in, 0), stack({in[0], in[2]}, 0)};
      },
      {variable({2, 2}, 1), variable({1, 2}, 2), variable({2, 2}, 3)}));
  EXPECT_TRUE(gradients_agree([](const TensorList& in) -> TensorList { return {cat(in, 0)}; },
                              {randn({2, 2}, 1), variable({0, 2}, 2), variable({1, 2}, 3)}));
}

TEST(SplitCat, RejectsWhatCannotBeCut) {
  const Tensor x = randn({2, 3});
  EXPECT_EQ(message_of<ShapeError>([&] { split(x, 0, 0); }), "split: size must be positive, got 0");
  EXPECT_EQ(message_of<ShapeError>([&] { chunk(x, -1, 1); }),
            "chunk: the number of pieces must be positive, got -1");
}

TEST(SplitCat, RejectsWhatDoesNotJoin) {
  const Tensor x = randn({2, 3});
  EXPECT_EQ(message_of<ShapeError>([] { cat({}, 0); }), "cat: needs at least one tensor");
  EXPECT_EQ(message_of<ShapeError>([] { stack({}, 0); }), "stack: needs at least one tensor");
  EXPECT_EQ(message_of<ShapeError>([&] {
              cat({x, randn({2, 2})}, 0);
            }),
            "cat: shapes must agree but for dimension 0, got [2, 3] and [2, 2]");
  EXPECT_EQ(message_of<ShapeError>([&] {
              cat({x, randn({3})}, 0);
            }),
            "cat: shapes must agree but for dimension 0, got [2, 3] and [3]");
  EXPECT_EQ(message_of<DtypeError>([&] {
              cat({x, Tensor::zeros({2, 3})}, 0);
            }),
            "cat: dtypes must agree, got float64 and float32");
  EXPECT_EQ(message_of<ShapeError>([&] {
              stack({x, randn({3, 2})}, 0);
            }),
            "stack: shapes must agree, got [2, 3] and [3, 2]");
}

}  // namespace
}  // namespace moegrad::ops::split_cat_test
