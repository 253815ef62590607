// SPDX-License-Identifier: Apache-2.0
#include "framework/tensor/as_eigen.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "tests/testing.h"

namespace moegrad::as_eigen_test {
namespace {

using test::message_of;

template <class T>
concept MapsTemporary = requires {
  as_eigen<float>(T());
};
static_assert(!MapsTemporary<Tensor>, "a map on a temporary would dangle");

TEST(AsEigen, IsTheTensorsOwnMemory) {
  const Tensor a = Tensor::from(std::vector<double>{0, 1, 2, 3, 4, 5}, {2, 3});
  const auto map = as_eigen<double>(a);
  EXPECT_EQ(map.data(), a.data<double>().data());
  EXPECT_EQ(map.rows(), 2);
  EXPECT_EQ(map.cols(), 3);
  EXPECT_EQ(map(1, 0), 3);
  EXPECT_EQ(a.storage().version(), 1U);  // from() wrote; reading does not count
}

TEST(AsEigen, VectorsAreColumnsAndScalarsOneByOne) {
  const Tensor vector = Tensor::ones({4}), scalar = Tensor::full({}, 2);
  EXPECT_EQ(as_eigen<float>(vector).rows(), 4);
  EXPECT_EQ(as_eigen<float>(vector).cols(), 1);
  EXPECT_EQ(as_eigen<float>(scalar)(0, 0), 2);
}

TEST(AsEigen, EmptyMatricesKeepTheirSizes) {
  const Tensor empty = Tensor::zeros({0, 3});
  EXPECT_EQ(as_eigen<float>(empty).rows(), 0);
  EXPECT_EQ(as_eigen<float>(empty).cols(), 3);
}

TEST(AsEigen, SquareRootsAreExactToTheLastBit) {
  const float denormal = std::numeric_limits<float>::denorm_min();
  Tensor x = Tensor::empty({4096});
  const auto values = x.mutable_data<float>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = i < 16 ? static_cast<float>(i) * denormal : 0.37F * static_cast<float>(i);
  }
  Tensor roots = empty_like(x);
  as_eigen<float>(roots) = as_eigen<float>(std::as_const(x)).array().sqrt();
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(roots.data<float>()[i], std::sqrt(values[i])) << values[i];
  }
}

TEST(AsEigen, WritingCountsAsModification) {
  Tensor a = Tensor::zeros({2, 2});
  const auto version = a.storage().version();
  as_eigen<float>(a)(0, 1) = 5;
  EXPECT_EQ(a.data<float>()[1], 5);
  EXPECT_EQ(a.storage().version(), version + 1);
}

TEST(AsEigen, ReadsAViewAtItsOffset) {
  const Tensor a = Tensor::from(std::vector<double>{0, 1, 2, 3, 4, 5}, {2, 3});
  const Tensor row = Tensor::as_strided(a, {1, 3}, {3, 1}, 3);
  EXPECT_EQ(as_eigen<double>(row)(0, 2), 5);
}

TEST(AsEigen, RefusesWhatIsNoRowMajorMatrixOfT) {
  const Tensor a = Tensor::zeros({2, 3});
  EXPECT_EQ(message_of<LayoutError>([] {
              const Tensor nz = Tensor::empty_nz({2, 3}, {1, 2, 3}, Dtype::kFloat32);
              as_eigen<float>(nz);
            }),
            "as_eigen: the tensor must be row-major ND, got FRACTAL_NZ");
  EXPECT_EQ(message_of<ShapeError>([] {
              Tensor deep = Tensor::zeros({2, 3, 4});
              as_eigen<float>(deep);
            }),
            "as_eigen: the tensor must have at most 2 dimensions, got [2, 3, 4]");
  EXPECT_EQ(message_of<LayoutError>([&] {
              const Tensor transposed = Tensor::as_strided(a, {3, 2}, {1, 3}, 0);
              as_eigen<float>(transposed);
            }),
            "as_eigen: the tensor must be contiguous, got shape [3, 2] with strides [1, 3]");
  EXPECT_EQ(message_of<DtypeError>([&] { as_eigen<double>(a); }),
            "tensor: data of float32 read as float64");
}

}  // namespace
}  // namespace moegrad::as_eigen_test
