// SPDX-License-Identifier: Apache-2.0
#include "framework/tensor/fill.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/testing.h"

namespace moegrad::fill_test {
namespace {

using test::bitwise_equal;
using test::message_of;
using test::randn;

TEST(Fill, WritesEveryElementOfAnyType) {
  for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kBFloat16, Dtype::kInt64}) {
    Tensor tensor = Tensor::zeros({3}, dtype);
    fill_(tensor, 2);
    EXPECT_EQ(Tensor::as_strided(tensor, {1}, {1}, 2).item(), 2) << dtype;
  }
}

TEST(Fill, AddNeedsEqualShapesAndTypes) {
  Tensor a = Tensor::ones({2, 3});
  add_(a, Tensor::ones({2, 3}));
  EXPECT_TRUE(bitwise_equal(a, Tensor::full({2, 3}, 2)));
  EXPECT_EQ(message_of<ShapeError>([&] {
              add_(a, Tensor::ones({3, 2}));
            }),
            "add_: shapes must agree, got [2, 3] and [3, 2]");
  EXPECT_EQ(message_of<DtypeError>([&] {
              add_(a, Tensor::ones({2, 3}, Dtype::kFloat64));
            }),
            "add_: dtypes must agree, got float32 and float64");
}

TEST(Fill, CopyReadsStridedTensorsAndConverts) {
  const Tensor a = Tensor::from(std::vector<double>{0, 1, 2, 3, 4, 5}, {2, 3});
  Tensor b = Tensor::empty({3, 2}, Dtype::kFloat32);
  copy_(b, Tensor::as_strided(a, {3, 2}, {1, 3}, 0));
  EXPECT_TRUE(bitwise_equal(b, Tensor::from(std::vector<float>{0, 3, 1, 4, 2, 5}, {3, 2})));
  Tensor expanded = Tensor::empty({2, 2}, Dtype::kInt64);
  copy_(expanded, Tensor::as_strided(a, {2, 2}, {0, 3}, 1));
  EXPECT_TRUE(bitwise_equal(expanded, Tensor::from(std::vector<std::int64_t>{1, 4, 1, 4}, {2, 2})));
  Tensor scalar = Tensor::empty({}, Dtype::kBFloat16);
  copy_(scalar, Tensor::full({}, 1.00390625));  // a tie, to even
  EXPECT_EQ(scalar.item(), 1.0);
  EXPECT_EQ(message_of<ShapeError>([&] { copy_(b, a); }),
            "copy_: shapes must agree, got [3, 2] and [2, 3]");
}

TEST(Fill, CopyTransposesMatricesOfAnySize) {
  for (const std::int64_t rows : {1, 31, 32, 33, 70}) {
    for (const std::int64_t columns : {1, 64, 65}) {
      const Tensor a = randn({2, columns, rows});
      const Tensor copy =
          clone(Tensor::as_strided(a, {2, rows, columns}, {rows * columns, 1, rows}, 0));
      const auto from = a.data<double>(), to = copy.data<double>();
      for (std::size_t i = 0; i < to.size(); ++i) {
        const auto n = static_cast<std::size_t>(rows * columns);
        const auto r = i % n / static_cast<std::size_t>(columns);
        const auto c = i % static_cast<std::size_t>(columns);
        ASSERT_EQ(to[i], from[i / n * n + c * static_cast<std::size_t>(rows) + r])
            << rows << " x " << columns << " at " << i;
      }
    }
  }
}

TEST(Fill, EmptyTensorsAreFine) {
  Tensor a = Tensor::zeros({0, 3});
  add_(a, Tensor::zeros({0, 3}));
  copy_(a, Tensor::zeros({0, 3}));
  fill_(a, 1);
  EXPECT_EQ(clone(a).shape(), (Shape{0, 3}));
}

TEST(Fill, ACloneHasItsOwnBytes) {
  Tensor a = randn({3, 4});
  const Tensor copy = clone(a);
  EXPECT_TRUE(bitwise_equal(a, copy));
  fill_(a, 0);
  EXPECT_FALSE(bitwise_equal(a, copy));
  EXPECT_TRUE(clone(Tensor::as_strided(a, {4, 3}, {1, 4}, 0)).is_contiguous());
}

TEST(Fill, AnNzTensorIsClonedBlockByBlock) {
  Tensor nz = Tensor::empty_nz({2, 3}, {1, 2, 3}, Dtype::kFloat32);
  float next = 0;
  for (auto& value : nz.mutable_nz_data<float>()) value = next++;
  const Tensor copy = clone(nz);
  EXPECT_EQ(copy.layout(), Layout::kNZ);
  EXPECT_EQ(copy.nz_data<float>().back(), 255);
  EXPECT_NE(&copy.storage(), &nz.storage());
  EXPECT_THROW(to_dtype(nz, Dtype::kFloat64), LayoutError);
}

}  // namespace
}  // namespace moegrad::fill_test
