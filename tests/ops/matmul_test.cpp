// SPDX-License-Identifier: Apache-2.0
#include "ops/matmul.h"

#include <utility>
#include <vector>

#include "ops/copies.h"
#include "ops/views.h"
#include "tests/testing.h"

namespace moegrad::ops::matmul_test {
namespace {

using namespace test;

const std::vector<std::pair<Shape, Shape>>& operands() {
  static const std::vector<std::pair<Shape, Shape>> pairs{
      {{2, 3}, {3, 4}},       {{1, 1}, {1, 1}},    {{5, 1}, {1, 7}}, {{2, 3, 4}, {2, 4, 5}},
      {{2, 3, 4}, {4, 5}},    {{3, 4}, {2, 4, 5}}, {{0, 3}, {3, 2}}, {{2, 0}, {0, 3}},
      {{0, 2, 3}, {0, 3, 2}}, {{0, 2, 3}, {3, 2}}};
  return pairs;
}

Tensor by_definition(const Tensor& a, const Tensor& b) {
  const auto m = a.dim(-2), k = a.dim(-1), n = b.dim(-1);
  const bool batched = a.ndim() == 3 || b.ndim() == 3;
  const auto batch = a.ndim() == 3 ? a.dim(0) : b.ndim() == 3 ? b.dim(0) : 1;
  Tensor c = Tensor::zeros(batched ? Shape{batch, m, n} : Shape{m, n}, Dtype::kFloat64);
  const auto* p = a.data<double>().data();
  const auto* q = b.data<double>().data();
  auto* out = c.mutable_data<double>().data();
  for (std::int64_t i = 0; i < batch * m * n; ++i) {
    const auto g = i / (m * n), row = i / n % m, column = i % n;
    for (std::int64_t j = 0; j < k; ++j) {
      out[i] += p[(a.ndim() == 3 ? g * m * k : 0) + row * k + j] *
                q[(b.ndim() == 3 ? g * k * n : 0) + j * n + column];
    }
  }
  return c;
}

TEST(Matmul, MatchesItsDefinition) {
  for (const auto& [a_shape, b_shape] : operands()) {
    const Tensor a = randn(a_shape, 1), b = randn(b_shape, 2);
    const Tensor expected = by_definition(a, b);
    EXPECT_TRUE(all_close(matmul(a, b), expected, 1e-12, 1e-13)) << a_shape << b_shape;
    EXPECT_TRUE(all_close(matmul(to_dtype(a, Dtype::kFloat32), to_dtype(b, Dtype::kFloat32)),
                          expected, 1e-5, 1e-5))
        << a_shape << b_shape;
  }
}

TEST(Matmul, GradientsMatchFiniteDifferences) {
  for (const auto& [a_shape, b_shape] : operands()) {
    EXPECT_TRUE(
        gradients_agree([](const TensorList& in) -> TensorList { return {matmul(in[0], in[1])}; },
                        {variable(a_shape, 1), variable(b_shape, 2)}))
        << a_shape << b_shape;
  }
}

TEST(Matmul, OnlyTheAskedGradientIsFormed) {
  const Tensor a = variable({2, 3}, 1), b = randn({3, 2}, 2);
  matmul(a, b).backward(randn({2, 2}));
  EXPECT_TRUE(a.grad().defined());
  EXPECT_FALSE(b.grad().defined());
  const Tensor c = randn({2, 3}, 1), d = variable({3, 2}, 2);
  matmul(c, d).backward(randn({2, 2}));
  EXPECT_TRUE(d.grad().defined());
}

TEST(Matmul, ReadsStridedOperands) {
  const Tensor a = transpose(randn({3, 2}, 1), 0, 1), b = transpose(randn({4, 3}, 2), 0, 1);
  EXPECT_TRUE(bitwise_equal(matmul(a, b), matmul(contiguous(a), contiguous(b))));
}

// For a matrix product alone, and for one of a batch, forward and backward.
TEST(Matmul, ARowDoesNotDependOnHowManyRowsThereAre) {
  for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    for (const std::int64_t k : {300, 1000}) {
      const Tensor b = randn({2, k, 40}, 1, dtype), all = randn({2, 80, k}, 2, dtype);
      const Tensor grads = randn({2, 80, 40}, 3, dtype);
      const auto first_rows = [&](std::int64_t rows) {
        Tensor a = clone(narrow(all, 1, 0, rows));
        a.set_requires_grad(true);
        const Tensor c = matmul(a, b);
        c.backward(clone(narrow(grads, 1, 0, rows)));
        const auto matrix = [](const Tensor& x) { return squeeze(narrow(x, 0, 0, 1), 0); };
        EXPECT_TRUE(bitwise_equal(matmul(matrix(a.detach()), matrix(b)), matrix(c.detach())));
        return TensorList{contiguous(narrow(c.detach(), 1, 0, 1)),
                          contiguous(narrow(a.grad(), 1, 0, 1))};
      };
      const auto alone = first_rows(1);
      for (const std::int64_t rows : {2, 3, 5, 8, 12, 13, 16, 31, 48, 64, 80}) {
        const auto of_block = first_rows(rows);
        EXPECT_TRUE(bitwise_equal(of_block[0], alone[0])) << dtype << ' ' << k << ' ' << rows;
        EXPECT_TRUE(bitwise_equal(of_block[1], alone[1])) << dtype << ' ' << k << ' ' << rows;
      }
    }
  }
}

TEST(Matmul, RowsHaveTheSameBitsInWhateverShapeTheyCome) {
  for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    const Tensor a = randn({2, 3, 5, 37}, 1, dtype), b = randn({37, 19}, 2, dtype);
    const Tensor all = matmul(a, b);  // [2, 3, 5, 19]
    for (std::int64_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(bitwise_equal(all[1][i], matmul(a[1][i], b)));
      EXPECT_TRUE(bitwise_equal(all[0][i][4], matmul(a[0][i][4], b)));
    }
    const Tensor wide = Tensor::as_strided(b, {3, 37, 19}, {0, 19, 1}, 0);
    EXPECT_TRUE(bitwise_equal(matmul(a, wide), all));
    EXPECT_EQ(matmul(a[0][0][0], b.slice(1, 3, 4)).item(), all[0][0][0][3].item());
  }
}

TEST(Matmul, RejectsShapesAndDtypesThatDoNotMeet) {
  EXPECT_EQ(message_of<ShapeError>([] {
              matmul(randn({}), randn({3, 2}));
            }),
            "matmul: operands must have at least one dimension, got [] and [3, 2]");
  EXPECT_EQ(message_of<ShapeError>([] {
              matmul(randn({2, 3}), randn({2, 3}));
            }),
            "matmul: inner sizes must agree, got [2, 3] and [2, 3]");
  EXPECT_EQ(message_of<ShapeError>([] {
              matmul(randn({2, 2, 3}), randn({3, 3, 2}));
            }),
            "matmul: shapes [2] and [3] do not broadcast");
  EXPECT_EQ(message_of<DtypeError>([] {
              matmul(randn({2, 3}), Tensor::ones({3, 2}));
            }),
            "matmul: needs two operands of float32 or of float64, got float64 and float32");
}

}  // namespace
}  // namespace moegrad::ops::matmul_test
