// SPDX-License-Identifier: Apache-2.0
// Tensor::operator[] and Tensor::slice.
#include "framework/autograd/slice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "framework/tensor/fill.h"
#include "tests/framework/autograd/expect_gradcheck.h"
#include "tests/testing.h"

namespace moegrad::slice_test {
namespace {

using namespace test;
using Integers = std::vector<std::int64_t>;

constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
constexpr auto kLeast = std::numeric_limits<std::int64_t>::min();

Tensor counted(const Shape& shape) {
  return Tensor::as_strided(Tensor::arange(shape.numel()), shape, row_major_strides(shape), 0);
}

TEST(Select, RemovesTheFirstDimension) {
  const Tensor x = counted({3, 2, 4});
  EXPECT_EQ(x[1].shape(), (Shape{2, 4}));
  EXPECT_EQ(integers(x[1]), (Integers{8, 9, 10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(integers(x[-1][0]), (Integers{16, 17, 18, 19}));
  EXPECT_EQ(x[2][1][3].item<std::int64_t>(), 23);
  EXPECT_EQ(&x[1].storage(), &x.storage());
  const Tensor transposed = Tensor::as_strided(x, {4, 3}, {1, 8}, 0);
  EXPECT_EQ(integers(clone(transposed[2])), (Integers{2, 10, 18}));
}

TEST(Select, RefusesPositionsOutOfRange) {
  EXPECT_EQ(message_of<ShapeError>([] {
              counted({3, 2})[3];
            }),
            "operator[]: position must be in [-3, 3) for dimension 0 of [3, 2], got 3");
  EXPECT_EQ(message_of<ShapeError>([] {
              counted({3, 2})[-4];
            }),
            "operator[]: position must be in [-3, 3) for dimension 0 of [3, 2], got -4");
  EXPECT_EQ(message_of<ShapeError>([] { counted({})[0]; }),
            "operator[]: needs a dimension, got []");
  EXPECT_THROW(Tensor()[0], UndefinedTensorError);
}

TEST(Slice, TakesWhatPythonTakes) {
  const Tensor x = counted({10});
  const auto slice = [&](auto... range) { return integers(clone(x.slice(0, range...))); };
  EXPECT_EQ(slice(), integers(x));
  EXPECT_EQ(slice(7), (Integers{7, 8, 9}));
  EXPECT_EQ(slice(2, 5), (Integers{2, 3, 4}));
  EXPECT_EQ(slice(-3, -1), (Integers{7, 8}));
  EXPECT_EQ(slice(1, 8, 3), (Integers{1, 4, 7}));
  EXPECT_EQ(slice(1, 7, 3), (Integers{1, 4}));
  EXPECT_EQ(slice(0, 99, 9), (Integers{0, 9}));
  EXPECT_EQ(slice(-99, 2), (Integers{0, 1}));
  EXPECT_EQ(slice(5, 2), Integers{});
  EXPECT_EQ(slice(10), Integers{});
  EXPECT_EQ(slice(kLeast, kMost, kMost), Integers{0});
  EXPECT_EQ(slice(9, kMost, kMost), Integers{9});
  EXPECT_EQ(integers(clone(counted({2, 3}).slice(-1, 1))), (Integers{1, 2, 4, 5}));
  EXPECT_EQ(counted({2, 3}).slice(1, 3).shape(), (Shape{2, 0}));
}

TEST(Slice, RefusesDimensionsAndStepsThatDoNotExist) {
  EXPECT_EQ(message_of<ShapeError>([] {
              counted({2, 3}).slice(2);
            }),
            "slice: dimension must be in [-2, 1], got 2");
  EXPECT_EQ(message_of<ShapeError>([] { counted({}).slice(0); }),
            "slice: needs a dimension, got []");
  EXPECT_EQ(message_of<ValueError>([] { counted({2}).slice(0, 0, 2, 0); }),
            "slice: step must be at least 1, got 0");
  EXPECT_EQ(message_of<LayoutError>([] {
              Tensor::empty_nz({2, 2}, {.batch = 1, .k = 2, .n = 2}, Dtype::kFloat32).slice(0);
            }),
            "slice: input 0 must be row-major ND, got FRACTAL_NZ; convert it with nz_to_nd");
}

TEST(Slice, GradientsMatchFiniteDifferences) {
  const auto check = [](auto&& part, const Shape& shape) {
    test::expect_success([&](const TensorList& in) { return TensorList{part(in[0])}; },
                         {test::variable(shape)});
  };
  check([](const Tensor& x) { return x[1]; }, {3, 2});
  check([](const Tensor& x) { return x[0]; }, {1});
  check([](const Tensor& x) { return x.slice(1, 1, 6, 2); }, {2, 7, 3});
  check([](const Tensor& x) { return x.slice(1, 1, 4); }, {2, 5, 3});
  check([](const Tensor& x) { return x.slice(0, 2, 2); }, {3});
  check([](const Tensor& x) { return x.slice(-1, 0, 9, 4); }, {2, 9});
  check([](const Tensor& x) { return x.slice(1, 0, 0, 3); }, {2, 3});
  check([](const Tensor& x) { return x.slice(1, 0, 9, 2)[1].slice(0, 1)[-1]; }, {3, 7, 2});
}

}  // namespace
}  // namespace moegrad::slice_test
