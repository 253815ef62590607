// SPDX-License-Identifier: Apache-2.0
#include "ops/rope.h"

#include <cmath>

#include "framework/runtime/rank_context.h"
#include "ops/views.h"
#include "tests/ops/indices.h"
#include "tests/testing.h"

namespace moegrad::ops::rope_test {
namespace {

using namespace moegrad::test;

// x * cos + rotate_half(x) * sin with cos and sin of cat(freqs, freqs), as Hugging Face writes it.
Tensor reference(const Tensor& x, const std::vector<std::int64_t>& position, double theta) {
  Tensor y = zeros_like(x);
  const auto heads = x.dim(1), dim = x.dim(2), half = dim / 2;
  const auto in = x.data<double>();
  const auto out = y.mutable_data<double>();
  for (std::int64_t t = 0; t < x.dim(0); ++t) {
    for (std::int64_t n = 0; n < heads; ++n) {
      const auto row = (t * heads + n) * dim;
      for (std::int64_t i = 0; i < dim; ++i) {
        const double inv_freq =
            1 / std::pow(theta, 2.0 * static_cast<double>(i % half) / static_cast<double>(dim));
        const double angle = static_cast<double>(position[static_cast<std::size_t>(t)]) * inv_freq;
        const double rotated = i < half ? -in[static_cast<std::size_t>(row + i + half)]
                                        : in[static_cast<std::size_t>(row + i - half)];
        out[static_cast<std::size_t>(row + i)] =
            in[static_cast<std::size_t>(row + i)] * std::cos(angle) + rotated * std::sin(angle);
      }
    }
  }
  return y;
}

TEST(Rope, EqualsRotateHalfOfHuggingFace) {
  const std::vector<std::int64_t> position{0, 1, 2, 0, 40000};
  for (const std::int64_t dim : {2, 6, 8, 64}) {
    for (const std::int64_t heads : {1, 3}) {
      const Tensor x = randn({5, heads, dim});
      const auto table = rope_table(indices_of(position), dim, 1e6, Dtype::kFloat64);
      EXPECT_TRUE(all_close(rope(x, table), reference(x, position, 1e6), 1e-10, 1e-10));
    }
  }
}

TEST(Rope, TheFloat32TableIsTheFloat64TableRounded) {
  const Tensor at = indices_of({0, 7, 123456});
  const auto narrow_table = rope_table(at, 16, 1e4, Dtype::kFloat32);
  const auto wide_table = rope_table(at, 16, 1e4, Dtype::kFloat64);
  EXPECT_TRUE(bitwise_equal(narrow_table.cos, to_dtype(wide_table.cos, Dtype::kFloat32)));
  EXPECT_TRUE(bitwise_equal(narrow_table.sin, to_dtype(wide_table.sin, Dtype::kFloat32)));
}

TEST(Rope, Float32IsCloseToFloat64) {
  const Tensor at = indices_of({3, 9, 1000});
  const Tensor x = randn({3, 2, 32});
  const Tensor y = rope(to_dtype(x, Dtype::kFloat32), rope_table(at, 32, 1e4, Dtype::kFloat32));
  EXPECT_TRUE(all_close(y, rope(x, rope_table(at, 32, 1e4, Dtype::kFloat64)), 1e-6, 1e-6));
}

TEST(Rope, ScoresDependOnTheDistanceOfPositionsOnly) {
  const Tensor q = randn({1, 1, 8}, 1), k = randn({1, 1, 8}, 2);
  const auto score = [&](std::int64_t query_at, std::int64_t key_at) {
    const Tensor a = rope(q, rope_table(indices_of({query_at}), 8, 1e4, Dtype::kFloat64));
    const Tensor b = rope(k, rope_table(indices_of({key_at}), 8, 1e4, Dtype::kFloat64));
    double sum = 0;
    for (std::size_t i = 0; i < 8; ++i) sum += a.data<double>()[i] * b.data<double>()[i];
    return sum;
  };
  EXPECT_NEAR(score(5, 2), score(105, 102), 1e-12);
  EXPECT_GT(std::abs(score(5, 2) - score(5, 3)), 1e-3);
}

TEST(Rope, GradientsMatchFiniteDifferences) {
  const auto table = rope_table(indices_of({0, 3, 11}), 6, 100, Dtype::kFloat64);
  const auto f = [&](const TensorList& in) { return TensorList{rope(in[0], table)}; };
  EXPECT_TRUE(moegrad::gradients_agree(f, {variable({3, 2, 6})}));
}

TEST(Rope, GivesTheSameBitsWithThreeThreads) {
  std::vector<std::int64_t> position(100);
  for (std::size_t t = 0; t < position.size(); ++t) position[t] = static_cast<std::int64_t>(t);
  const auto table = rope_table(indices_of(position), 10, 1e4, Dtype::kFloat32);
  const Tensor x = randn({100, 3, 10}, 1, Dtype::kFloat32);
  const Tensor one = rope(x, table);
  RankContext::current().set_threads(3);
  const Tensor three = rope(x, table);
  RankContext::current().set_threads(1);
  EXPECT_TRUE(bitwise_equal(three, one));
}

TEST(Rope, ReadsStridedInputs) {
  const Tensor x = transpose(randn({2, 3, 8}, 1), 0, 1);
  const Tensor at =
      squeeze(narrow(Tensor::from(std::vector<std::int64_t>{4, 0, 5, 0, 6, 0}, {3, 2}), 1, 0, 1),
              1);  // 4, 5, 6 with stride 2
  const auto table = rope_table(at, 8, 1e4, Dtype::kFloat64);
  const RopeTable strided{transpose(clone(transpose(table.cos, 0, 1)), 0, 1),
                          transpose(clone(transpose(table.sin, 0, 1)), 0, 1)};
  const auto expected = rope(clone(x), rope_table(indices_of({4, 5, 6}), 8, 1e4, Dtype::kFloat64));
  EXPECT_TRUE(bitwise_equal(rope(x, strided), expected));
}

TEST(Rope, NoTokensAreLegal) {
  const auto table = rope_table(indices_of({}), 4, 1e4, Dtype::kFloat32);
  Tensor x = Tensor::zeros({0, 2, 4});
  x.set_requires_grad(true);
  const Tensor y = rope(x, table);
  EXPECT_EQ(y.shape(), (Shape{0, 2, 4}));
  y.backward(Tensor::zeros({0, 2, 4}));
  EXPECT_EQ(x.grad().shape(), (Shape{0, 2, 4}));
}

TEST(Rope, RejectsInputsThatDoNotFitAndNamesThem) {
  const auto table = rope_table(indices_of({0, 1}), 4, 1e4, Dtype::kFloat32);
  EXPECT_EQ(message_of<ShapeError>([&] {
              rope(Tensor::zeros({2, 4}), table);
            }),
            "rope: x must be [T, N, D], got [2, 4]");
  EXPECT_EQ(message_of<ShapeError>([&] {
              rope(Tensor::zeros({2, 1, 5}), table);
            }),
            "rope: the last dimension of x must be even, got [2, 1, 5]");
  EXPECT_EQ(message_of<ShapeError>([&] {
              rope(Tensor::zeros({3, 1, 4}), table);
            }),
            "rope: table must be [3, 2] to match x [3, 1, 4], got cos [2, 2] and sin [2, 2]");
  EXPECT_EQ(message_of<DtypeError>([&] {
              rope(Tensor::zeros({2, 1, 4}, Dtype::kFloat64), table);
            }),
            "rope: x is float64 but the table is float32 and float32");
  EXPECT_EQ(message_of<DtypeError>([] {
              rope(Tensor::zeros({2, 1, 4}, Dtype::kBFloat16),
                   {.cos = Tensor::zeros({2, 2}), .sin = Tensor::zeros({2, 2}, Dtype::kFloat64)});
            }),
            "rope: sin must be float32 for x in bfloat16, got float64");
}

TEST(Rope, TheTableRejectsArgumentsThatDoNotFitAndNamesThem) {
  const auto table = [](const Tensor& at, std::int64_t dim, double theta) {
    return rope_table(at, dim, theta, Dtype::kFloat32);
  };
  EXPECT_EQ(message_of<ShapeError>([&] {
              table(Tensor::zeros({2, 2}, Dtype::kInt64), 4, 1e4);
            }),
            "rope_table: positions must be [T], got [2, 2]");
  EXPECT_EQ(message_of<DtypeError>([&] { table(Tensor::zeros({2}), 4, 1e4); }),
            "rope_table: positions must be int64, got float32");
  EXPECT_EQ(message_of<ValueError>([&] { table(indices_of({0}), 5, 1e4); }),
            "rope_table: head_dim must be even and at least 2, got 5");
  EXPECT_EQ(message_of<ValueError>([&] { table(indices_of({0}), 4, -1); }),
            "rope_table: theta must be positive, got -1");
}

}  // namespace
}  // namespace moegrad::ops::rope_test
