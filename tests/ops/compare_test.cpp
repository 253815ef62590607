// SPDX-License-Identifier: Apache-2.0
#include "ops/compare.h"

#include <cmath>
#include <limits>
#include <vector>

#include "framework/tensor/nested_values.h"
#include "ops/elementwise.h"
#include "ops/masks.h"
#include "ops/views.h"
#include "tests/testing.h"

namespace moegrad::ops::compare_test {
namespace {

using namespace test;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

Tensor row(const std::vector<double>& values) { return Tensor::from(values, {std::ssize(values)}); }

TEST(Compare, NonzeroReadsAResultOnTheTape) {
  Tensor x = Tensor::of({{0, 2}, {-1, 3}}).set_requires_grad(true);
  EXPECT_TRUE(equal(nonzero(relu(x)), Tensor::of({{0, 1}, {1, 1}}, Dtype::kInt64)));
}

TEST(Compare, EqualLooksAtShapesAndEveryElement) {
  const Tensor a = randn({3, 4});
  Tensor b = test::randn({3, 4});
  EXPECT_TRUE(equal(a, b));
  EXPECT_TRUE(equal(transpose(a, 0, 1), transpose(b, 0, 1)));
  EXPECT_FALSE(equal(a, view(b, {4, 3})));
  EXPECT_FALSE(equal(a, view(b, {1, 3, 4})));
  b.mutable_data<double>()[11] = std::nextafter(b.data<double>()[11], 9.0);
  EXPECT_FALSE(equal(a, b));
  EXPECT_TRUE(equal(Tensor::zeros({0, 2}), Tensor::zeros({0, 2})));
  EXPECT_TRUE(equal(row({0.0, kInfinity}), row({-0.0, kInfinity})));
  EXPECT_FALSE(equal(row({kNaN}), row({kNaN})));
  for (const auto dtype : {Dtype::kInt64, Dtype::kBool, Dtype::kBFloat16}) {
    EXPECT_TRUE(equal(Tensor::ones({2}, dtype), Tensor::ones({2}, dtype))) << dtype;
    EXPECT_FALSE(equal(Tensor::ones({2}, dtype), Tensor::zeros({2}, dtype))) << dtype;
  }
  EXPECT_EQ(message_of<DtypeError>([&] {
              equal(a, Tensor::zeros({3, 4}));
            }),
            "equal: dtypes must agree, got float64 and float32");
  EXPECT_EQ(message_of<UndefinedTensorError>([&] { equal(a, {}); }),
            "equal: input 1 must be a defined tensor, got an undefined one");
}

TEST(Compare, EqualAndAllcloseTakeResultsOnTheTape) {
  const Tensor x = test::variable({2, 3});
  EXPECT_TRUE(equal(transpose(x, 0, 1), transpose(x, 0, 1)));
  EXPECT_TRUE(allclose(transpose(x, 0, 1), transpose(x, 0, 1)));
}

// The expected values are those of torch.allclose.
TEST(Compare, AllcloseIsWithinATolerancePlusAPartOfTheSecond) {
  EXPECT_TRUE(allclose(row({1, 100}), row({1 + 1e-6, 100.0009})));
  EXPECT_FALSE(allclose(row({1, 100}), row({1 + 1e-6, 100.002})));
  EXPECT_TRUE(allclose(row({0}), row({1e-8})));
  EXPECT_FALSE(allclose(row({0}), row({1.1e-8})));
  EXPECT_TRUE(allclose(row({0}), row({1}), 1, 0));   // of the second
  EXPECT_FALSE(allclose(row({1}), row({0}), 1, 0));  // not of the first
  EXPECT_TRUE(allclose(row({1}), row({3}), 0, 2));
  EXPECT_TRUE(allclose(row({kInfinity, -kInfinity}), row({kInfinity, -kInfinity})));
  EXPECT_FALSE(allclose(row({kInfinity}), row({-kInfinity}), 1, 1));
  EXPECT_FALSE(allclose(row({1}), row({kInfinity}), 1, 1));
  EXPECT_FALSE(allclose(row({kNaN}), row({kNaN})));
  EXPECT_TRUE(allclose(row({kNaN}), row({kNaN}), 1e-5, 1e-8, /*equal_nan=*/true));
  EXPECT_FALSE(allclose(row({kNaN}), row({1}), 1, 1, /*equal_nan=*/true));
  EXPECT_TRUE(allclose(Tensor::ones({2, 3}), Tensor::ones({3})));
  EXPECT_TRUE(allclose(Tensor::ones({2}, Dtype::kBFloat16), Tensor::ones({2}, Dtype::kBFloat16)));
}

TEST(Compare, AllcloseRejectsWhatItCannotCompare) {
  const Tensor a = randn({2});
  EXPECT_EQ(message_of<ShapeError>([&] { allclose(a, randn({3})); }),
            "allclose: shapes [2] and [3] do not broadcast");
  EXPECT_EQ(message_of<DtypeError>([&] { allclose(a, Tensor::zeros({2})); }),
            "allclose: dtypes must agree, got float64 and float32");
  EXPECT_EQ(message_of<DtypeError>([&] { allclose(Tensor::arange(2), Tensor::arange(2)); }),
            "allclose: needs float32, float64 or bfloat16, got int64");
  EXPECT_EQ(message_of<ValueError>([&] { allclose(a, a, -1); }),
            "allclose: rtol and atol must not be negative, got -1 and 1e-08");
}

}  // namespace
}  // namespace moegrad::ops::compare_test
