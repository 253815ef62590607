// SPDX-License-Identifier: Apache-2.0
#include "ops/linear.h"

#include "framework/runtime/rank_context.h"
#include "ops/nz.h"
#include "ops/views.h"
#include "tests/ops/matmul_reference.h"
#include "tests/testing.h"

namespace moegrad::ops::linear_test {
namespace {

using namespace test;

struct Sizes {
  std::int64_t m, in, out;
};

// Row tails, column tails, and reductions that are cut into cache blocks (of 512).
const Sizes kAwkward[] = {{1, 1, 1},   {2, 3, 5},    {3, 16, 16},    {4, 17, 31},  {5, 33, 15},
                          {6, 64, 48}, {7, 515, 17}, {13, 1030, 40}, {97, 9, 130}, {770, 5, 18}};

struct Results {
  Tensor y, grad_x, grad_weight;
};

Results run(const Sizes& s, Dtype dtype) {
  const Tensor x = randn({s.m, s.in}, 1, dtype, true);
  const Tensor weight = randn({s.out, s.in}, 2, dtype, true);
  const Tensor y = linear(x, weight);
  y.backward(randn({s.m, s.out}, 3, dtype));
  return {y.detach(), x.grad(), weight.grad()};
}

template <class T>
void expect_scalar_sums(const Sizes& s) {
  const auto dtype = dtype_of<T>;
  const Tensor x = randn({s.m, s.in}, 1, dtype), weight = randn({s.out, s.in}, 2, dtype);
  const Tensor grad = randn({s.m, s.out}, 3, dtype);
  const auto *px = x.data<T>().data(), *pw = weight.data<T>().data(), *pg = grad.data<T>().data();
  Tensor y = Tensor::empty({s.m, s.out}, dtype);
  Tensor grad_x = Tensor::empty({s.m, s.in}, dtype);
  Tensor grad_weight = Tensor::empty({s.out, s.in}, dtype);
  test::halved_products<T>({px, s.in, 1}, {pw, s.in, 1}, s.m, s.out, s.in,
                           y.mutable_data<T>().data());
  test::halved_products<T>({pg, s.out, 1}, {pw, 1, s.in}, s.m, s.in, s.out,
                           grad_x.mutable_data<T>().data());
  test::halved_products<T>({pg, 1, s.out}, {px, 1, s.in}, s.out, s.in, s.m,
                           grad_weight.mutable_data<T>().data());
  const auto results = run(s, dtype);
  EXPECT_TRUE(bitwise_equal(results.y, y));
  EXPECT_TRUE(bitwise_equal(results.grad_x, grad_x));
  EXPECT_TRUE(bitwise_equal(results.grad_weight, grad_weight));
}

TEST(Linear, ValuesAndGradientsAreScalarSumsBitForBit) {
  for (const auto& sizes : kAwkward) {
    SCOPED_TRACE(::testing::Message() << sizes.m << ' ' << sizes.in << ' ' << sizes.out);
    expect_scalar_sums<float>(sizes);
    expect_scalar_sums<double>(sizes);
  }
}

TEST(Linear, GradientsMatchFiniteDifferences) {
  EXPECT_TRUE(moegrad::gradients_agree(
      [](const TensorList& in) { return TensorList{linear(in[0], in[1])}; },
      {variable({2, 3, 5}, 1), variable({4, 5}, 2)}));
  EXPECT_TRUE(moegrad::gradients_agree(
      [](const TensorList& in) { return TensorList{linear(in[0], in[1], 4)}; },
      {variable({2, 3, 5}, 1), variable({4, 5}, 2)}));
}

TEST(Linear, ThreadsDoNotChangeABit) {
  const Sizes sizes{800, 530, 300};
  const auto one = run(sizes, Dtype::kFloat32);
  RankContext context({.threads = 3});
  const RankContextGuard guard(context);
  const auto three = run(sizes, Dtype::kFloat32);
  EXPECT_TRUE(bitwise_equal(one.y, three.y));
  EXPECT_TRUE(bitwise_equal(one.grad_x, three.grad_x));
  EXPECT_TRUE(bitwise_equal(one.grad_weight, three.grad_weight));
}

TEST(Linear, ARowDoesNotDependOnHowManyRowsThereAre) {
  const Tensor x = randn({23, 70}, 1, Dtype::kFloat32);
  const Tensor weight = randn({40, 70}, 2, Dtype::kFloat32);
  const Tensor all = linear(x, weight);
  for (std::int64_t rows = 1; rows < 23; ++rows) {
    EXPECT_TRUE(bitwise_equal(linear(narrow(x, 0, 0, rows), weight), narrow(all, 0, 0, rows)));
  }
}

TEST(Linear, Float32IsCloseToFloat64) {
  const auto narrow_results = run({33, 600, 50}, Dtype::kFloat32);
  const auto wide = run({33, 600, 50}, Dtype::kFloat64);
  EXPECT_TRUE(all_close(narrow_results.y, wide.y, 1e-4, 1e-4));
  EXPECT_TRUE(all_close(narrow_results.grad_x, wide.grad_x, 1e-4, 1e-4));
  EXPECT_TRUE(all_close(narrow_results.grad_weight, wide.grad_weight, 1e-4, 1e-4));
}

TEST(Linear, KeepsLeadingDimensions) {
  const Tensor x = randn({2, 3, 5}), weight = randn({4, 5}, 2);
  const Tensor flat = linear(view(x, {6, 5}), weight);
  EXPECT_TRUE(bitwise_equal(linear(x, weight), view(flat, {2, 3, 4})));
  EXPECT_EQ(linear(randn({5}), weight).shape(), Shape{4});
}

TEST(Linear, ReadsStridedInputsAndAcceptsAStridedGradient) {
  const Tensor x = randn({5, 6}), weight = randn({5, 7}, 2), grad = randn({7, 6}, 3);
  const Tensor strided_x = x.detach().set_requires_grad(true);
  const Tensor strided_weight = weight.detach().set_requires_grad(true);
  const Tensor y = linear(transpose(strided_x, 0, 1), transpose(strided_weight, 0, 1));
  y.backward(transpose(grad, 0, 1));
  Tensor plain_x = clone(transpose(x, 0, 1)), plain_weight = clone(transpose(weight, 0, 1));
  plain_x.set_requires_grad(true);
  plain_weight.set_requires_grad(true);
  const Tensor expected = linear(plain_x, plain_weight);
  expected.backward(clone(transpose(grad, 0, 1)));
  EXPECT_TRUE(bitwise_equal(y, expected));
  EXPECT_TRUE(bitwise_equal(transpose(strided_x.grad(), 0, 1), plain_x.grad()));
  EXPECT_TRUE(bitwise_equal(transpose(strided_weight.grad(), 0, 1), plain_weight.grad()));
}

TEST(Linear, EmptySizesGiveEmptyOrZeroResults) {
  for (const Sizes sizes : {Sizes{0, 3, 4}, Sizes{2, 0, 4}, Sizes{2, 3, 0}}) {
    const auto results = run(sizes, Dtype::kFloat64);
    EXPECT_TRUE(bitwise_equal(results.grad_x, Tensor::zeros({sizes.m, sizes.in}, Dtype::kFloat64)));
    EXPECT_TRUE(
        bitwise_equal(results.grad_weight, Tensor::zeros({sizes.out, sizes.in}, Dtype::kFloat64)));
    EXPECT_TRUE(bitwise_equal(results.y, Tensor::zeros({sizes.m, sizes.out}, Dtype::kFloat64)));
  }
}

TEST(Linear, TransposesWhilePackingAndNeverMaterialises) {
  RankContext context{RankContext::Options{}};
  const RankContextGuard guard(context);
  const auto& counters = context.counters();
  const Tensor x = randn({6, 20}, 1, Dtype::kFloat32, true);
  const Tensor weight = randn({40, 20}, 2, Dtype::kFloat32, true);
  const Tensor y = linear(x, weight);
  EXPECT_EQ(counters.transposed_packs, 1);
  EXPECT_EQ(counters.packed_panels, 0);
  y.backward(randn({6, 40}, 3, Dtype::kFloat32));
  EXPECT_EQ(counters.transposed_packs, 1);
  EXPECT_EQ(counters.packed_panels, 1);
  EXPECT_EQ(counters.materialized_transposes, 0);
}

TEST(Linear, ComputesOnlyTheGradientAskedFor) {
  RankContext context{RankContext::Options{}};
  const RankContextGuard guard(context);
  const Tensor x = randn({6, 20}), weight = variable({40, 20}, 2);
  linear(x, weight).backward(randn({6, 40}, 3));
  EXPECT_EQ(context.counters().packed_panels, 0);  // dL/dx would pack the weight
  EXPECT_TRUE(weight.grad().defined());
  EXPECT_FALSE(x.grad().defined());
}

TEST(Linear, HasTheSameBitsWithAWeightInFractalNz) {
  const auto run = [](Tensor weight) {
    const Tensor x = randn({9, 35}, 1, Dtype::kFloat32, true);
    const Tensor y = linear(x, weight.set_requires_grad(true));
    y.backward(randn({9, 21}, 3, Dtype::kFloat32));
    return TensorList{y.detach(), x.grad(), weight.grad()};
  };
  const Tensor weight = randn({21, 35}, 2, Dtype::kFloat32);
  const auto nd = run(weight.detach()), nz = run(nd_to_nz(weight));
  for (std::size_t i = 0; i < nd.size(); ++i) EXPECT_TRUE(bitwise_equal(nd[i], nz[i])) << i;
}

TEST(Linear, RejectsWhatDoesNotFit) {
  EXPECT_EQ(message_of<ShapeError>([] {
              linear(randn({}), randn({4, 5}));
            }),
            "linear: x needs a last dimension, got []");
  EXPECT_EQ(message_of<ShapeError>([] {
              linear(randn({2, 5}), randn({5}));
            }),
            "linear: weight must be [out, in], got [5]");
  EXPECT_EQ(message_of<ShapeError>([] {
              linear(randn({2, 5}), randn({4, 6}));
            }),
            "linear: weight must be [out, 5] to match x [2, 5], got [4, 6]");
  EXPECT_EQ(message_of<ValueError>([] {
              linear(randn({2, 3}), randn({4, 3}), -1);
            }),
            "linear: gradient_rows must not be negative, got -1");
  EXPECT_EQ(message_of<DtypeError>([] {
              linear(Tensor::zeros({2, 5}, Dtype::kInt64), randn({4, 5}));
            }),
            "linear: x must be float32, float64 or bfloat16, got int64");
  EXPECT_EQ(message_of<DtypeError>([] {
              linear(randn({2, 5}), randn({4, 5}, 1, Dtype::kFloat32));
            }),
            "linear: x is float64 but weight is float32");
  const Tensor nz = Tensor::empty_nz({4, 5}, {2, 2, 5}, Dtype::kFloat64);
  EXPECT_EQ(
      message_of<LayoutError>([&] {
        linear(randn({2, 5}), nz);
      }),
      "linear: weight [4, 5] must be FRACTAL_NZ blocks of that shape, got blocks of [2, 2, 5]");
}

}  // namespace
}  // namespace moegrad::ops::linear_test
