// SPDX-License-Identifier: Apache-2.0
#include "ops/swiglu.h"

#include <cmath>
#include <vector>

#include "framework/runtime/rank_context.h"
#include "ops/elementwise.h"
#include "ops/shape_ops.h"
#include "tests/testing.h"

namespace moegrad::ops {
namespace {

using moegrad::testing::all_close;
using moegrad::testing::bitwise_equal;
using moegrad::testing::message_of;
using moegrad::testing::randn;
using moegrad::testing::variable;

TensorList f(const TensorList& in) { return {swiglu(in[0])}; }

struct Result {
  Tensor y, grad;
};

template <class Op>
Result run(const Op& op, const Tensor& gate_up, const Tensor& grad_y) {
  Tensor leaf = gate_up.detach();
  leaf.set_requires_grad(true);
  const Tensor y = op(leaf);
  y.backward(grad_y);
  return {y.detach(), leaf.grad()};
}

Tensor composition(const Tensor& gate_up) {
  const auto inner = gate_up.dim(1) / 2;
  return silu(narrow(gate_up, 1, 0, inner)) * narrow(gate_up, 1, inner, inner);
}

TEST(SwiGLU, EqualsItsFormula) {
  const Tensor gate_up = randn({3, 10});
  const Tensor y = swiglu(gate_up);
  ASSERT_EQ(y.shape(), (Shape{3, 5}));
  const auto in = gate_up.data<double>();
  const auto out = y.data<double>();
  for (std::size_t r = 0; r < 3; ++r) {
    for (std::size_t i = 0; i < 5; ++i) {
      const double gate = in[r * 10 + i], up = in[r * 10 + 5 + i];
      EXPECT_NEAR(out[r * 5 + i], gate / (1 + std::exp(-gate)) * up, 1e-14);
    }
  }
}

TEST(SwiGLU, EqualsItsCompositionFromPlainOps) {
  for (const std::int64_t inner : {1, 7, 8, 33}) {
    const Tensor gate_up = randn({13, 2 * inner}, 1), grad_y = randn({13, inner}, 2);
    const auto fused = run(swiglu, gate_up, grad_y);
    const auto plain = run(composition, gate_up, grad_y);
    EXPECT_TRUE(all_close(fused.y, plain.y, 1e-14, 1e-15));
    EXPECT_TRUE(all_close(fused.grad, plain.grad, 1e-13, 1e-15));
  }
}

TEST(SwiGLU, GradientsMatchFiniteDifferences) {
  EXPECT_TRUE(moegrad::testing::gradcheck(f, {variable({3, 10})}));
  EXPECT_TRUE(moegrad::testing::gradcheck(f, {variable({1, 2})}));
}

TEST(SwiGLU, Float32IsCloseToFloat64) {
  const auto wide = run(swiglu, randn({9, 38}, 1), randn({9, 19}, 2));
  const auto narrow =
      run(swiglu, randn({9, 38}, 1, Dtype::kFloat32), randn({9, 19}, 2, Dtype::kFloat32));
  EXPECT_EQ(narrow.y.dtype(), Dtype::kFloat32);
  EXPECT_TRUE(all_close(narrow.y, wide.y, 2e-6, 2e-6));
  EXPECT_TRUE(all_close(narrow.grad, wide.grad, 4e-6, 4e-6));
}

TEST(SwiGLU, LargeGatesGiveTheUpValueOrZero) {
  const Tensor gate_up = Tensor::from(std::vector<float>{1e4F, -1e4F, 3, 3}, {1, 4});
  const auto result = run(swiglu, gate_up, Tensor::ones({1, 2}));
  EXPECT_TRUE(all_close(result.y, Tensor::from(std::vector<float>{3e4F, 0}, {1, 2}), 0, 0));
  EXPECT_TRUE(
      all_close(result.grad, Tensor::from(std::vector<float>{3, 0, 1e4F, 0}, {1, 4}), 0, 0));
}

TEST(SwiGLU, TakesStridedInputsAndGradients) {
  const Tensor gate_up = randn({6, 4}, 1), grad_y = randn({3, 4}, 2);
  const auto strided = run([](const Tensor& x) { return swiglu(transpose(x, 0, 1)); }, gate_up,
                           transpose(grad_y, 0, 1));
  const auto dense =
      run(swiglu, contiguous(transpose(gate_up, 0, 1)), contiguous(transpose(grad_y, 0, 1)));
  EXPECT_TRUE(bitwise_equal(strided.y, dense.y));
  EXPECT_TRUE(bitwise_equal(transpose(strided.grad, 0, 1), dense.grad));
}

TEST(SwiGLU, EmptyInputsGiveEmptyResultsAndGradients) {
  for (const Shape& shape : {Shape{0, 6}, Shape{3, 0}}) {
    const auto result = run(swiglu, Tensor::zeros(shape), Tensor::zeros({shape[0], shape[1] / 2}));
    EXPECT_EQ(result.y.shape(), (Shape{shape[0], shape[1] / 2}));
    EXPECT_EQ(result.grad.shape(), shape);
  }
}

TEST(SwiGLU, ARowDependsNeitherOnTheOthersNorOnTheThreads) {
  const Tensor gate_up = randn({300, 74}, 1, Dtype::kFloat32);
  const Tensor grad_y = randn({300, 37}, 2, Dtype::kFloat32);
  const auto all = run(swiglu, gate_up, grad_y);
  const auto some = run(swiglu, narrow(gate_up, 0, 123, 2), narrow(grad_y, 0, 123, 2));
  EXPECT_TRUE(bitwise_equal(some.y, narrow(all.y, 0, 123, 2)));
  EXPECT_TRUE(bitwise_equal(some.grad, narrow(all.grad, 0, 123, 2)));
  RankContext::current().set_threads(3);
  const auto threaded = run(swiglu, gate_up, grad_y);
  RankContext::current().set_threads(1);
  EXPECT_TRUE(bitwise_equal(threaded.y, all.y));
  EXPECT_TRUE(bitwise_equal(threaded.grad, all.grad));
}

TEST(SwiGLU, RejectsOtherShapesAndTypes) {
  EXPECT_EQ(message_of<ShapeError>([] { swiglu(randn({4})); }),
            "swiglu: gate_up must be [R, 2I], got [4]");
  EXPECT_EQ(message_of<ShapeError>([] {
              swiglu(randn({2, 5}));
            }),
            "swiglu: gate_up must be [R, 2I], got [2, 5]");
  EXPECT_EQ(message_of<DtypeError>([] {
              swiglu(Tensor::zeros({2, 4}, Dtype::kInt64));
            }),
            "swiglu: gate_up must be float32 or float64, got int64");
}

}  // namespace
}  // namespace moegrad::ops
