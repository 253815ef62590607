// SPDX-License-Identifier: Apache-2.0
#include "framework/tensor/shape.h"

#include <gtest/gtest.h>

#include <vector>

#include "framework/tensor/tensor.h"
#include "tests/testing.h"

namespace moegrad::shape_test {
namespace {

using test::message_of;

std::string printed(const Shape& shape) {
  std::ostringstream out;
  out << shape;
  return out.str();
}

TEST(Shape, PrintsAsAList) {
  EXPECT_EQ(printed({}), "[]");
  EXPECT_EQ(printed({3}), "[3]");
  EXPECT_EQ(printed({2, 0, 5}), "[2, 0, 5]");
}

TEST(Shape, CountsElements) {
  EXPECT_EQ(Shape{}.numel(), 1);
  EXPECT_EQ((Shape{2, 3, 4}).numel(), 24);
  EXPECT_EQ((Shape{2, 0, 4}).numel(), 0);
}

TEST(Shape, IndexesFromBothEnds) {
  Shape shape{2, 3, 5};
  EXPECT_EQ(shape[0], 2);
  EXPECT_EQ(shape[-1], 5);
  shape[-2] = 7;
  EXPECT_EQ(shape, (Shape{2, 7, 5}));
}

TEST(Shape, ComparesRankAndSizes) {
  EXPECT_EQ((Shape{2, 3}), (Shape{2, 3}));
  EXPECT_NE((Shape{2, 3}), (Shape{2, 3, 1}));
  EXPECT_NE((Shape{2, 3}), (Shape{3, 2}));
  EXPECT_NE(Shape{}, Shape{1});
}

TEST(Shape, RejectsAPositionOutOfRange) {
  const Shape shape{2, 3};
  EXPECT_EQ(message_of<ShapeError>([&] { (void)shape[2]; }),
            "shape: dimension must be in [-2, 1], got 2");
  EXPECT_EQ(message_of<ShapeError>([&] { (void)shape[-3]; }),
            "shape: dimension must be in [-2, 1], got -3");
}

TEST(Shape, HasAtMostEightDimensions) {
  const std::vector<std::int64_t> dims(9, 1);
  EXPECT_EQ(message_of<ShapeError>([&] { Shape shape{std::span<const std::int64_t>(dims)}; }),
            "shape: at most 8 dimensions");
}

TEST(Shape, HasAtMostAsManyElementsAsCanBeCounted) {
  constexpr std::int64_t kHalf = std::int64_t{1} << 31;
  EXPECT_EQ((Shape{kHalf, kHalf}.numel()), kHalf * kHalf);
  EXPECT_EQ(message_of<ShapeError>([] {
              (void)Shape{2 * kHalf, 2 * kHalf}.numel();
            }),
            "shape: [4294967296, 4294967296] must have at most 2^63 - 1 elements");
  EXPECT_EQ(message_of<ShapeError>([] {
              Tensor::zeros({2 * kHalf, 2 * kHalf});
            }),
            "shape: [4294967296, 4294967296] must have at most 2^63 - 1 elements");
  EXPECT_EQ(message_of<ShapeError>([] {
              Tensor::zeros({kHalf, kHalf});
            }),
            "tensor: float32 of shape [2147483648, 2147483648] must have at most 2^63 - 1 bytes");
  const Tensor base = Tensor::zeros({4});
  EXPECT_FALSE(message_of<ShapeError>([&] {
                 Tensor::as_strided(base, {2, 3}, {kHalf * kHalf, kHalf * kHalf}, 0);
               }).empty());
}

TEST(Shape, RowMajorStridesEndWithOne) {
  EXPECT_EQ(row_major_strides({2, 3, 5}), (Shape{15, 5, 1}));
  EXPECT_EQ(row_major_strides({4}), (Shape{1}));
  EXPECT_EQ(row_major_strides({}), Shape{});
}

}  // namespace
}  // namespace moegrad::shape_test
