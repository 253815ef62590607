// SPDX-License-Identifier: Apache-2.0
#include "ops/views.h"

#include <functional>
#include <vector>

#include "tests/ops/counting.h"
#include "tests/testing.h"

namespace moegrad::ops::views_test {
namespace {

using namespace test;

TEST(Views, ViewSharesStorageAndInfersOneSize) {
  const Tensor x = counting({2, 6});
  const Tensor y = view(x, {3, -1});
  EXPECT_EQ(y.shape(), (Shape{3, 4}));
  EXPECT_TRUE(shares_storage(x, y));
  EXPECT_TRUE(bitwise_equal(view(y, {2, 6}), x));
  EXPECT_EQ(view(counting({1}), {}).shape(), Shape{});
  EXPECT_EQ(view(Tensor::zeros({0, 3}), {0, 5}).shape(), (Shape{0, 5}));
  EXPECT_EQ(view(Tensor::zeros({0, 3}), {-1, 3}).shape(), (Shape{0, 3}));
}

TEST(Views, ViewOfARangeKeepsItsOffset) {
  const Tensor x = narrow(counting({4, 2}), 0, 1, 2);
  EXPECT_TRUE(holds(view(x, {4}), {4}, {2, 3, 4, 5}));
}

TEST(Views, ViewOfNzBlocksStacksAndFlattens) {
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

TEST(Views, ReshapeCopiesOnlyWhatIsStrided) {
  const Tensor x = counting({2, 3});
  EXPECT_TRUE(shares_storage(reshape(x, {6}), x));
  const Tensor y = reshape(transpose(x, 0, 1), {6});
  EXPECT_TRUE(holds(y, {6}, {0, 3, 1, 4, 2, 5}));
}

TEST(Views, TransposeAndPermuteAreViews) {
  const Tensor x = counting({2, 3});
  const Tensor y = transpose(x, 0, -1);
  EXPECT_TRUE(shares_storage(x, y));
  EXPECT_TRUE(holds(y, {3, 2}, {0, 3, 1, 4, 2, 5}));
  EXPECT_TRUE(holds(permute(counting({2, 1, 3}), {2, 0, 1}), {3, 2, 1}, {0, 3, 1, 4, 2, 5}));
}

TEST(Views, NarrowTakesARange) {
  const Tensor x = counting({2, 5});
  EXPECT_TRUE(holds(narrow(x, 1, 1, 2), {2, 2}, {1, 2, 6, 7}));
  EXPECT_TRUE(shares_storage(narrow(x, 1, 1, 2), x));
  EXPECT_EQ(narrow(x, 0, 2, 0).shape(), (Shape{0, 5}));
}

TEST(Views, UnsqueezeSqueezeAndExpandAreViews) {
  const Tensor x = transpose(counting({2, 3}), 0, 1);
  EXPECT_TRUE(holds(unsqueeze(x, 1), {3, 1, 2}, {0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(unsqueeze(x, -1).shape(), (Shape{3, 2, 1}));
  EXPECT_TRUE(bitwise_equal(squeeze(unsqueeze(x, 0), 0), x));
  const Tensor y = expand(counting({2, 1}), {2, 2, 3});
  EXPECT_TRUE(holds(y, {2, 2, 3}, {0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(y.storage().bytes(), 16);
}

TEST(Views, GradientsMatchFiniteDifferences) {
  const std::vector<std::function<TensorList(const Tensor&)>> ops{
      [](const Tensor& x) {
        return TensorList{view(x, {4, -1})};
      },
      [](const Tensor& x) { return TensorList{reshape(transpose(x, 0, 1), {12})}; },
      [](const Tensor& x) { return TensorList{transpose(x, 0, 2)}; },
      [](const Tensor& x) { return TensorList{narrow(x, 1, 1, 2)}; },
      [](const Tensor& x) { return TensorList{narrow(transpose(x, 0, 1), 0, 2, 1)}; },
      [](const Tensor& x) { return TensorList{unsqueeze(transpose(x, 0, 1), 1)}; },
      [](const Tensor& x) { return TensorList{squeeze(narrow(x, 0, 1, 1), 0)}; },
      [](const Tensor& x) {
        return TensorList{expand(narrow(x, 1, 0, 1), {3, 2, 4, 2})};
      },
  };
  for (std::size_t i = 0; i < ops.size(); ++i) {
    EXPECT_TRUE(
        gradients_agree([&](const TensorList& in) { return ops[i](in[0]); }, {variable({2, 3, 2})}))
        << "op " << i;
  }
}

TEST(Views, GradientsAreContiguous) {
  const Tensor x = variable({2, 3});
  transpose(x, 0, 1).backward(randn({3, 2}));
  EXPECT_TRUE(x.grad().is_contiguous());
  // A gradient may itself come in strided.
  x.set_grad(Tensor());
  const Tensor grad = randn({3, 2});
  view(x, {2, 3}).backward(transpose(grad, 0, 1));
  EXPECT_TRUE(bitwise_equal(x.grad(), transpose(grad, 0, 1)));
}

TEST(Views, RejectsWhatDoesNotFit) {
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
  EXPECT_EQ(message_of<ShapeError>([&] { squeeze(x, 0); }),
            "squeeze: dimension 0 of [2, 3] must be of size 1");
  EXPECT_EQ(message_of<ShapeError>([&] {
              expand(x, {3, 3});
            }),
            "expand: [2, 3] does not expand to [3, 3]");
}

TEST(Views, ExpandKeepsASizeOfMinusOne) {
  const Tensor x = counting({2, 1});
  EXPECT_TRUE(bitwise_equal(expand(x, {4, -1, 3}), expand(x, {4, 2, 3})));
  for (const auto& shape : {Shape{-1, 2, 1}, Shape{-1}, Shape{2, -2}}) {
    EXPECT_THROW(expand(x, shape), ShapeError) << shape;
  }
}

TEST(Views, NarrowCountsANegativeStartFromTheEnd) {
  const Tensor x = counting({2, 5});
  EXPECT_TRUE(bitwise_equal(narrow(x, 1, -2, 2), narrow(x, 1, 3, 2)));
  EXPECT_TRUE(bitwise_equal(narrow(x, 1, -5, 1), narrow(x, 1, 0, 1)));
  EXPECT_EQ(message_of<ShapeError>([&] { narrow(x, 1, -6, 1); }),
            "narrow: start and length must stay inside dimension 1 of [2, 5], got -6 and 1");
  EXPECT_EQ(message_of<ShapeError>([&] { narrow(x, 1, -1, 2); }),
            "narrow: start and length must stay inside dimension 1 of [2, 5], got -1 and 2");
}

}  // namespace
}  // namespace moegrad::ops::views_test
