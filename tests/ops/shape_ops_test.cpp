// SPDX-License-Identifier: Apache-2.0
#include "ops/shape_ops.h"

#include <functional>
#include <numeric>
#include <vector>

#include "framework/runtime/rank_context.h"
#include "tests/testing.h"

namespace moegrad::ops::shape_ops_test {
namespace {

using test::bitwise_equal;
using test::message_of;
using test::randn;
using test::variable;

// 0, 1, 2, ... in row-major order.
Tensor counting(const Shape& shape) {
  std::vector<double> values(static_cast<std::size_t>(shape.numel()));
  std::iota(values.begin(), values.end(), 0.0);
  return Tensor::from(values, shape);
}

::testing::AssertionResult holds(const Tensor& x, const Shape& shape, std::vector<double> values) {
  return bitwise_equal(x, Tensor::from(values, shape));
}

std::int64_t copies() { return RankContext::current().counters().materialized_transposes; }

bool shares_storage(const Tensor& a, const Tensor& b) { return &a.storage() == &b.storage(); }

TEST(ShapeOps, ViewSharesStorageAndInfersOneSize) {
  const Tensor x = counting({2, 6});
  const Tensor y = view(x, {3, -1});
  EXPECT_EQ(y.shape(), (Shape{3, 4}));
  EXPECT_TRUE(shares_storage(x, y));
  EXPECT_TRUE(bitwise_equal(view(y, {2, 6}), x));
  EXPECT_EQ(view(counting({1}), {}).shape(), Shape{});
  EXPECT_EQ(view(Tensor::zeros({0, 3}), {0, 5}).shape(), (Shape{0, 5}));
  EXPECT_EQ(view(Tensor::zeros({0, 3}), {-1, 3}).shape(), (Shape{0, 3}));
}

TEST(ShapeOps, ViewOfARangeKeepsItsOffset) {
  const Tensor x = narrow(counting({4, 2}), 0, 1, 2);
  EXPECT_TRUE(holds(view(x, {4}), {4}, {2, 3, 4, 5}));
}

TEST(ShapeOps, ViewOfNzBlocksStacksAndFlattens) {
  const Tensor x = Tensor::empty_nz({6, 5}, {.batch = 2, .k = 3, .n = 5}, Dtype::kFloat32);
  const Tensor y = view(x, {2, 3, 5});
  EXPECT_EQ(y.layout(), Layout::kNZ);
  EXPECT_EQ(y.shape(), (Shape{2, 3, 5}));
  EXPECT_TRUE(shares_storage(x, y));
  EXPECT_EQ(view(y, {-1, 5}).shape(), (Shape{6, 5}));
  EXPECT_EQ(message_of<ShapeError>([&] {
              view(x, {3, 2, 5});
            }),
            "view: these FRACTAL_NZ blocks are [2, 3, 5] or [6, 5], got [3, 2, 5]");
}

TEST(ShapeOps, ReshapeCopiesOnlyWhatIsStrided) {
  const Tensor x = counting({2, 3});
  EXPECT_TRUE(shares_storage(reshape(x, {6}), x));
  const Tensor y = reshape(transpose(x, 0, 1), {6});
  EXPECT_TRUE(holds(y, {6}, {0, 3, 1, 4, 2, 5}));
}

TEST(ShapeOps, TransposeAndPermuteAreViews) {
  const Tensor x = counting({2, 3});
  const Tensor y = transpose(x, 0, -1);
  EXPECT_TRUE(shares_storage(x, y));
  EXPECT_TRUE(holds(y, {3, 2}, {0, 3, 1, 4, 2, 5}));
  EXPECT_TRUE(holds(permute(counting({2, 1, 3}), {2, 0, 1}), {3, 2, 1}, {0, 3, 1, 4, 2, 5}));
}

TEST(ShapeOps, ContiguousCopiesAndCountsOnlyStridedTensors) {
  const Tensor x = counting({2, 3});
  const auto before = copies();
  EXPECT_TRUE(contiguous(x).is(x));
  EXPECT_EQ(copies(), before);
  const Tensor y = contiguous(transpose(x, 0, 1));
  EXPECT_EQ(copies(), before + 1);
  EXPECT_TRUE(y.is_contiguous());
  const Tensor nz = Tensor::empty_nz({2, 3}, {.batch = 1, .k = 2, .n = 3}, Dtype::kFloat32);
  EXPECT_TRUE(contiguous(nz).is(nz));
}

TEST(ShapeOps, NarrowSplitAndChunkTakeRanges) {
  const Tensor x = counting({2, 5});
  EXPECT_TRUE(holds(narrow(x, 1, 1, 2), {2, 2}, {1, 2, 6, 7}));
  EXPECT_TRUE(shares_storage(narrow(x, 1, 1, 2), x));
  EXPECT_EQ(narrow(x, 0, 2, 0).shape(), (Shape{0, 5}));
  const auto pieces = split(x, 2, 1);
  ASSERT_EQ(pieces.size(), 3U);
  EXPECT_TRUE(holds(pieces[2], {2, 1}, {4, 9}));
  EXPECT_TRUE(bitwise_equal(cat(pieces, 1), x));
  EXPECT_TRUE(holds(chunk(x, 2, 0)[1], {1, 5}, {5, 6, 7, 8, 9}));
  ASSERT_EQ(split(Tensor::zeros({0, 2}), 4, 0).size(), 1U);
}

TEST(ShapeOps, UnsqueezeSqueezeAndExpandAreViews) {
  const Tensor x = transpose(counting({2, 3}), 0, 1);
  EXPECT_TRUE(holds(unsqueeze(x, 1), {3, 1, 2}, {0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(unsqueeze(x, -1).shape(), (Shape{3, 2, 1}));
  EXPECT_TRUE(bitwise_equal(squeeze(unsqueeze(x, 0), 0), x));
  const Tensor y = expand(counting({2, 1}), {2, 2, 3});
  EXPECT_TRUE(holds(y, {2, 2, 3}, {0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(y.storage().bytes(), 16);
}

// More than a Function takes: in runs of 64, and runs of runs.
TEST(ShapeOps, CatAndStackJoinAnyNumber) {
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

TEST(ShapeOps, CatAndStackJoin) {
  const Tensor x = counting({2, 2}), y = counting({2, 1});
  EXPECT_TRUE(holds(cat({x, y, x}, 1), {2, 5}, {0, 1, 0, 0, 1, 2, 3, 1, 2, 3}));
  EXPECT_TRUE(holds(cat({x, transpose(x, 0, 1)}, 0), {4, 2}, {0, 1, 2, 3, 0, 2, 1, 3}));
  EXPECT_TRUE(bitwise_equal(cat({x, Tensor::zeros({0, 2}, Dtype::kFloat64)}, 0), x));
  EXPECT_TRUE(holds(stack({x, x}, -1), {2, 2, 2}, {0, 0, 1, 1, 2, 2, 3, 3}));
  const Tensor i = Tensor::from<std::int64_t>({4, 5}, {2});
  EXPECT_TRUE(bitwise_equal(cat({i, i}, 0), Tensor::from<std::int64_t>({4, 5, 4, 5}, {4})));
}

TEST(ShapeOps, IndexSelectTakesRowsInAnyOrder) {
  const Tensor x = counting({3, 2});
  const Tensor indices = Tensor::from<std::int64_t>({2, 0, 2}, {3});
  EXPECT_TRUE(holds(index_select(x, indices), {3, 2}, {4, 5, 0, 1, 4, 5}));
  EXPECT_TRUE(holds(index_select(transpose(x, 0, 1), Tensor::from<std::int64_t>({1}, {1})), {1, 3},
                    {1, 3, 5}));
  EXPECT_EQ(index_select(x, Tensor::zeros({0}, Dtype::kInt64)).shape(), (Shape{0, 2}));
  EXPECT_TRUE(
      bitwise_equal(index_select(indices, indices), Tensor::from<std::int64_t>({2, 2, 2}, {3})));
}

TEST(ShapeOps, CastChangesTheDtypeAndItsGradientComesBack) {
  const Tensor x = variable({2, 3});
  const Tensor y = cast(x, Dtype::kFloat32);
  EXPECT_EQ(y.dtype(), Dtype::kFloat32);
  y.backward(Tensor::full({2, 3}, 0.1F));
  EXPECT_TRUE(bitwise_equal(x.grad(), Tensor::full({2, 3}, double{0.1F}, Dtype::kFloat64)));
  EXPECT_TRUE(cast(x, Dtype::kFloat64).is(x));
}

TEST(ShapeOps, GradientsMatchFiniteDifferences) {
  const Tensor rows = Tensor::from<std::int64_t>({1, 0, 1, 1}, {4});
  const std::vector<std::function<TensorList(const Tensor&)>> ops{
      [](const Tensor& x) {
        return TensorList{view(x, {4, -1})};
      },
      [](const Tensor& x) { return TensorList{reshape(transpose(x, 0, 1), {12})}; },
      [](const Tensor& x) { return TensorList{transpose(x, 0, 2)}; },
      [](const Tensor& x) {
        return TensorList{contiguous(permute(x, {2, 0, 1}))};
      },
      [](const Tensor& x) { return TensorList{narrow(x, 1, 1, 2)}; },
      [](const Tensor& x) { return TensorList{narrow(transpose(x, 0, 1), 0, 2, 1)}; },
      [](const Tensor& x) { return split(x, 2, 1); },
      [](const Tensor& x) { return chunk(x, 2, -1); },
      [](const Tensor& x) { return TensorList{unsqueeze(transpose(x, 0, 1), 1)}; },
      [](const Tensor& x) { return TensorList{squeeze(narrow(x, 0, 1, 1), 0)}; },
      [](const Tensor& x) {
        return TensorList{expand(narrow(x, 1, 0, 1), {3, 2, 4, 2})};
      },
      [](const Tensor& x) {
        return TensorList{cat({x, narrow(x, 1, 0, 1), x}, 1)};
      },
      [](const Tensor& x) {
        return TensorList{stack({x, x}, 1)};
      },
      [&](const Tensor& x) { return TensorList{index_select(x, rows)}; },
      [](const Tensor& x) { return TensorList{cast(x, Dtype::kFloat64)}; },
  };
  for (std::size_t i = 0; i < ops.size(); ++i) {
    EXPECT_TRUE(
        gradients_agree([&](const TensorList& in) { return ops[i](in[0]); }, {variable({2, 3, 2})}))
        << "op " << i;
  }
}

TEST(ShapeOps, GradientsOfSeveralInputsReachEach) {
  EXPECT_TRUE(gradients_agree(
      [](const TensorList& in) -> TensorList {
        return {cat(in, 0), stack({in[0], in[2]}, 0)};
      },
      {variable({2, 2}, 1), variable({1, 2}, 2), variable({2, 2}, 3)}));
  EXPECT_TRUE(gradients_agree([](const TensorList& in) -> TensorList { return {cat(in, 0)}; },
                              {randn({2, 2}, 1), variable({0, 2}, 2), variable({1, 2}, 3)}));
}

TEST(ShapeOps, GradientsAreContiguous) {
  const Tensor x = variable({2, 3});
  transpose(x, 0, 1).backward(randn({3, 2}));
  EXPECT_TRUE(x.grad().is_contiguous());
  // A gradient may itself come in strided.
  x.set_grad(Tensor());
  const Tensor grad = randn({3, 2});
  view(x, {2, 3}).backward(transpose(grad, 0, 1));
  EXPECT_TRUE(bitwise_equal(x.grad(), transpose(grad, 0, 1)));
}

TEST(ShapeOps, RejectsWhatDoesNotFit) {
  const Tensor x = randn({2, 3});
  EXPECT_EQ(message_of<ShapeError>([&] {
              view(x, {4, 2});
            }),
            "view: shape [4, 2] cannot hold the 6 elements of [2, 3]");
  EXPECT_EQ(message_of<ShapeError>([&] {
              view(x, {4, -1});
            }),
            "view: shape [4, -1] cannot hold the 6 elements of [2, 3]");
  EXPECT_EQ(message_of<ShapeError>([&] {
              reshape(x, {-1, -1});
            }),
            "reshape: sizes must not be negative but for one -1, got [-1, -1]");
  EXPECT_EQ(message_of<LayoutError>([&] { view(transpose(x, 0, 1), {6}); }),
            "view: needs a contiguous tensor, got shape [3, 2] with strides [1, 3]; use reshape");
  EXPECT_EQ(message_of<ShapeError>([&] { transpose(x, 0, 2); }),
            "transpose: dimension must be in [-2, 1], got 2");
  EXPECT_EQ(message_of<ShapeError>([&] { permute(x, {0}); }),
            "permute: [2, 3] needs 2 dimensions, got 1");
  EXPECT_EQ(message_of<ShapeError>([&] {
              permute(x, {0, -2});
            }),
            "permute: dimension 0 is named twice");
  EXPECT_EQ(message_of<ShapeError>([&] { narrow(x, 1, 2, 2); }),
            "narrow: start and length must stay inside dimension 1 of [2, 3], got 2 and 2");
  EXPECT_EQ(message_of<ShapeError>([&] { split(x, 0, 0); }), "split: size must be positive, got 0");
  EXPECT_EQ(message_of<ShapeError>([&] { chunk(x, 2, 1); }),
            "chunk: 2 equal pieces of dimension 1 of [2, 3] are not possible");
  EXPECT_EQ(message_of<ShapeError>([&] { squeeze(x, 0); }),
            "squeeze: dimension 0 of [2, 3] must be of size 1");
  EXPECT_EQ(message_of<ShapeError>([&] {
              expand(x, {3, 3});
            }),
            "expand: [2, 3] does not expand to [3, 3]");
}

TEST(ShapeOps, RejectsWhatDoesNotJoin) {
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

TEST(ShapeOps, RejectsBadIndicesAndDtypes) {
  const Tensor x = randn({2, 3});
  EXPECT_EQ(message_of<ShapeError>([&] { index_select(Tensor::ones({}), x); }),
            "index_select: needs at least one dimension, got []");
  EXPECT_EQ(message_of<ShapeError>([&] { index_select(x, x); }),
            "index_select: indices must be [n], got [2, 3]");
  EXPECT_EQ(message_of<DtypeError>([&] { index_select(x, randn({2})); }),
            "index_select: indices must be int64, got float64");
  EXPECT_EQ(message_of<ValueError>([&] {
              index_select(x, Tensor::from<std::int64_t>({1, 2}, {2}));
            }),
            "index_select: index must be in [0, 2), got 2 at position 1");
  EXPECT_EQ(message_of<DtypeError>([&] { cast(x, Dtype::kInt64); }),
            "cast: from and to float32 or float64, got float64 to int64");
}

}  // namespace
}  // namespace moegrad::ops::shape_ops_test
