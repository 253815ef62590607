// SPDX-License-Identifier: Apache-2.0
// The elements of floating tensors are expected as torch 1.13 prints them.
#include "framework/io/print.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <limits>
#include <memory>
#include <sstream>
#include <string>

#include "framework/distributed/shard_spec.h"
#include "framework/tensor/fill.h"
#include "framework/tensor/meta.h"
#include "framework/tensor/nested_values.h"
#include "tests/framework/autograd/test_functions.h"
#include "tests/framework/distributed/hand_shards.h"
#include "tests/testing.h"

namespace moegrad::print_test {
namespace {

std::string printed(const Tensor& tensor) {
  std::ostringstream stream;
  stream << tensor;
  return stream.str();
}

std::string elements(const Tensor& tensor) { return elements_text(tensor, 7, 1000); }

constexpr auto kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr auto kInfinity = std::numeric_limits<double>::infinity();

TEST(Print, ShowsElementsShapeDtypeAndLayout) {
  EXPECT_EQ(printed(Tensor::of({{0.5, -1}, {2.25, 3}})),
            "tensor([[ 0.5000, -1.0000],\n"
            "        [ 2.2500,  3.0000]], shape=[2, 2], dtype=float32, layout=ND)");
  EXPECT_EQ(printed(Tensor::of(7, Dtype::kInt64)), "tensor(7, shape=[], dtype=int64, layout=ND)");
  EXPECT_EQ(printed(Tensor::zeros({0, 3}, Dtype::kFloat64)),
            "tensor([], shape=[0, 3], dtype=float64, layout=ND)");
}

TEST(Print, HasAsManyDigitsAsTheStreamsPrecisionSays) {
  const auto with = [](int precision, const Tensor& tensor) {
    std::ostringstream stream;
    stream << std::setprecision(precision) << tensor;
    const auto text = stream.str();
    return text.substr(7, text.find(", shape") - 7);
  };
  const Tensor third = Tensor::of({1.0 / 3, -2}, Dtype::kFloat64);
  EXPECT_EQ(with(9, third), "[ 0.333333333, -2.000000000]");
  EXPECT_EQ(with(2, third), "[ 0.33, -2.00]");
  EXPECT_EQ(with(6, third), "[ 0.3333, -2.0000]");
  EXPECT_EQ(with(9, Tensor::of({1e-5, 1}, Dtype::kFloat64)), "[1.000000000e-05, 1.000000000e+00]");
  EXPECT_EQ(with(9, Tensor::of({1, 2})), "[1., 2.]");
  EXPECT_EQ(with(40, Tensor::of(1.0 / 3, Dtype::kFloat64)), "0.33333333333333331");
}

TEST(Print, WritesAllNumbersOfATensorInOneWay) {
  EXPECT_EQ(elements(Tensor::of({{1, 2}, {3, -40}})), "[[  1.,   2.],\n        [  3., -40.]]");
  EXPECT_EQ(elements(Tensor::of({1e-5, 1})), "[1.0000e-05, 1.0000e+00]");
  EXPECT_EQ(elements(Tensor::of({1e-5, 2e-5})), "[1.0000e-05, 2.0000e-05]");
  EXPECT_EQ(elements(Tensor::of({1, 2000, 0})), "[1.0000e+00, 2.0000e+03, 0.0000e+00]");
  EXPECT_EQ(elements(Tensor::of({1, 1000})), "[   1., 1000.]");
  EXPECT_EQ(elements(Tensor::of({1e9, 1e9})), "[1.0000e+09, 1.0000e+09]");
  EXPECT_EQ(elements(Tensor::of({0.001, kNaN, kInfinity, -kInfinity})),
            "[0.0010,    nan,    inf,   -inf]");
  EXPECT_EQ(elements(Tensor::of({kNaN, 1})), "[nan, 1.]");
  EXPECT_EQ(elements(Tensor::of({0, 0, 0})), "[0., 0., 0.]");
  EXPECT_EQ(elements(Tensor::of(2.5, Dtype::kFloat64)), "2.5000");
  EXPECT_EQ(elements(Tensor::of({0.1}, Dtype::kBFloat16)), "[0.1001]");
  EXPECT_EQ(elements(Tensor::of({true, false}, Dtype::kBool)), "[ True, False]");
  EXPECT_EQ(elements(Tensor::of({{-3, 4000000}}, Dtype::kInt64)), "[[     -3, 4000000]]");
  EXPECT_EQ(elements(Tensor::of({{-3, 4000000}}, Dtype::kInt32)), "[[     -3, 4000000]]");
  EXPECT_EQ(elements(Tensor::of({-128, 65}, Dtype::kInt8)), "[-128,   65]");
}

TEST(Print, BreaksLinesAndLeavesBlankOnesBetweenMatrices) {
  EXPECT_EQ(elements(Tensor::arange(0, 5, 0.25)),
            "[0.0000, 0.2500, 0.5000, 0.7500, 1.0000, 1.2500, 1.5000, 1.7500, 2.0000,\n"
            "        2.2500, 2.5000, 2.7500, 3.0000, 3.2500, 3.5000, 3.7500, 4.0000, 4.2500,\n"
            "        4.5000, 4.7500]");
  EXPECT_EQ(elements(Tensor::of({{{0, 1}, {2, 3}}, {{4, 5}, {6, 7}}})),
            "[[[0., 1.],\n         [2., 3.]],\n\n        [[4., 5.],\n         [6., 7.]]]");
  EXPECT_EQ(elements(Tensor::zeros({2, 1, 1, 1})), "[[[[0.]]],\n\n\n        [[[0.]]]]");
}

TEST(Print, ShortensMoreThanAThousandElements) {
  EXPECT_EQ(elements(Tensor::arange(1001)), "[   0,    1,    2,  ...,  998,  999, 1000]");
  EXPECT_EQ(elements_text(Tensor::zeros({1000}), 0, 1000).find("..."), std::string::npos);
  EXPECT_EQ(elements(Tensor::zeros({7, 200})),
            "[[0., 0., 0.,  ..., 0., 0., 0.],\n        [0., 0., 0.,  ..., 0., 0., 0.],\n"
            "        [0., 0., 0.,  ..., 0., 0., 0.],\n        ...,\n"
            "        [0., 0., 0.,  ..., 0., 0., 0.],\n        [0., 0., 0.,  ..., 0., 0., 0.],\n"
            "        [0., 0., 0.,  ..., 0., 0., 0.]]");
  // Six in a dimension are shown all; what is not shown does not change how the others are written.
  Tensor wide = Tensor::zeros({6, 200});
  wide.mutable_data<float>()[100] = 1e-6F;
  EXPECT_EQ(elements(wide).find("..."), std::string("[[0., 0., 0.,  ").size());
}

TEST(Print, SaysWhereATensorComesFrom) {
  Tensor x = Tensor::of({1, 2}, Dtype::kFloat64).set_requires_grad(true);
  EXPECT_EQ(printed(x),
            "tensor([1., 2.], shape=[2], dtype=float64, layout=ND, requires_grad=True)");
  EXPECT_EQ(printed(test::mul(x, x)),
            "tensor([1., 4.], shape=[2], dtype=float64, layout=ND, grad_fn=<mul>)");
  x.set_shard_spec(std::make_shared<const ShardSpec>(test::range_spec({4}, 2, 4)));
  EXPECT_EQ(printed(x),
            "tensor([1., 2.], shape=[2], dtype=float64, layout=ND,\n"
            "       shard=[2, 4) of dimension 0 of [4], requires_grad=True)");
}

TEST(Print, ReadsStridesAndBlocks) {
  const Tensor x = Tensor::of({{0, 1, 2}, {3, 4, 5}});
  EXPECT_EQ(elements(Tensor::as_strided(x, {2}, {3}, 1)), "[1., 4.]");
  Tensor blocked = Tensor::empty_nz({2, 2, 1}, {.batch = 2, .k = 2, .n = 1}, Dtype::kFloat32);
  auto values = blocked.mutable_nz_data<float>();
  std::ranges::fill(values, -1.0F);  // padding
  for (std::size_t i = 0; i < 4; ++i) {
    const auto k = static_cast<std::int64_t>(i % 2), matrix = static_cast<std::int64_t>(i / 2);
    values[static_cast<std::size_t>(matrix * nz_numel(2, 1) + nz_offset(k, 0, 2))] =
        static_cast<float>(i);
  }
  EXPECT_EQ(printed(blocked),
            "tensor([[[0.],\n         [1.]],\n\n        [[2.],\n         [3.]]], shape=[2, 2, 1], "
            "dtype=float32, layout=FRACTAL_NZ)");
}

TEST(Print, NeedsNoBytes) {
  EXPECT_EQ(printed(Tensor()), "tensor(undefined)");
  const Tensor released = Tensor::zeros({2});
  released.storage().release();
  EXPECT_EQ(printed(released), "tensor(..., released, shape=[2], dtype=float32, layout=ND)");
  const MetaGuard meta;
  EXPECT_EQ(printed(Tensor::zeros({2})), "tensor(..., meta, shape=[2], dtype=float32, layout=ND)");
}

TEST(Print, ShowsNoSignOfNaN) {
  const auto nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(elements(Tensor::of({std::copysign(nan, -1.0), nan, 1.5})), "[   nan,    nan, 1.5000]");
}

}  // namespace
}  // namespace moegrad::print_test
