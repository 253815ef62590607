// SPDX-License-Identifier: Apache-2.0
#include "ops/swiglu.h"

#include <cmath>
#include <utility>
#include <vector>

#include "framework/autograd/function.h"
#include "framework/runtime/rank_context.h"
#include "framework/tensor/fill.h"
#include "ops/copies.h"
#include "ops/elementwise.h"
#include "ops/views.h"
#include "tests/testing.h"

namespace moegrad::ops::swiglu_test {
namespace {

using namespace moegrad::test;

TensorList f(const TensorList& in) { return {swiglu(in[0], in.size() > 1 ? in[1] : Tensor())}; }

struct Result {
  Tensor y, grad, grad_weights;
};

template <class Op>
Result run(const Op& op, const Tensor& gate_up, const Tensor& grad_y, const Tensor& weights = {}) {
  Tensor leaf = gate_up.detach(), weight_leaf;
  leaf.set_requires_grad(true);
  if (weights.defined()) {
    weight_leaf = weights.detach();
    weight_leaf.set_requires_grad(true);
  }
  const Tensor y = op(leaf, weight_leaf);
  y.backward(grad_y);
  return {y.detach(), leaf.grad(), weights.defined() ? weight_leaf.grad() : Tensor()};
}

Tensor as_column(const Tensor& weights) { return reshape(weights, {weights.numel(), 1}); }

Tensor composition(const Tensor& gate_up, const Tensor& weights) {
  const auto inner = gate_up.dim(1) / 2;
  const Tensor y = silu(narrow(gate_up, 1, 0, inner)) * narrow(gate_up, 1, inner, inner);
  return weights.defined() ? y * as_column(weights) : y;
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

TEST(SwiGLU, WithWeightsEqualsItsCompositionFromPlainOps) {
  for (const auto& [rows, inner] : {std::pair{1, 1}, {1, 19}, {13, 7}, {5, 33}, {2, 2100}}) {
    const Tensor gate_up = randn({rows, 2 * inner}, 1), grad_y = randn({rows, inner}, 2);
    const Tensor weights = randn({rows}, 3);
    const auto fused = run(swiglu, gate_up, grad_y, weights);
    const auto plain = run(composition, gate_up, grad_y, weights);
    EXPECT_TRUE(all_close(fused.y, plain.y, 1e-14, 1e-15));
    EXPECT_TRUE(all_close(fused.grad, plain.grad, 1e-13, 1e-15));
    EXPECT_TRUE(all_close(fused.grad_weights, plain.grad_weights, 1e-13, 1e-13));
  }
}

TEST(SwiGLU, WeightsScaleRowsAndTheirGradientsBitForBit) {
  const Tensor gate_up = randn({13, 38}, 1, Dtype::kFloat32);
  const Tensor grad_y = randn({13, 19}, 2, Dtype::kFloat32);
  const Tensor weights = randn({13}, 3, Dtype::kFloat32);
  const auto weighted = run(swiglu, gate_up, grad_y, weights);
  const auto without = run(swiglu, gate_up, grad_y);
  EXPECT_TRUE(bitwise_equal(weighted.y, without.y * as_column(weights)));
  EXPECT_TRUE(bitwise_equal(weighted.grad, without.grad * as_column(weights)));
}

TEST(SwiGLU, AWeightOfZeroHasTheGradientOfAnyOther) {
  const Tensor gate_up = randn({2, 10}, 1), grad_y = randn({2, 5}, 2);
  const auto zero = run(swiglu, gate_up, grad_y, Tensor::zeros({2}, Dtype::kFloat64));
  const auto one = run(swiglu, gate_up, grad_y, Tensor::ones({2}, Dtype::kFloat64));
  EXPECT_TRUE(all_close(zero.y, zeros_like(zero.y), 0, 0));
  EXPECT_TRUE(all_close(zero.grad, zeros_like(zero.grad), 0, 0));
  EXPECT_TRUE(bitwise_equal(zero.grad_weights, one.grad_weights));
}

TEST(SwiGLU, GradientsMatchFiniteDifferences) {
  EXPECT_TRUE(moegrad::gradients_agree(f, {variable({3, 10})}));
  EXPECT_TRUE(moegrad::gradients_agree(f, {variable({1, 2})}));
  EXPECT_TRUE(moegrad::gradients_agree(f, {variable({3, 10}), variable({3}, 1)}));
  EXPECT_TRUE(moegrad::gradients_agree(f, {variable({1, 2}), variable({1}, 1)}));
  EXPECT_TRUE(moegrad::gradients_agree(f, {randn({3, 10}), variable({3}, 1)}));
  EXPECT_TRUE(moegrad::gradients_agree(f, {variable({3, 10}), randn({3}, 1)}));
}

TEST(SwiGLU, KeepsItsInputsAlone) {
  EXPECT_EQ(swiglu(variable({3, 10}), variable({3})).grad_fn()->saved_bytes(), 3 * 10 * 8 + 3 * 8);
  EXPECT_EQ(swiglu(variable({3, 10})).grad_fn()->saved_bytes(), 3 * 10 * 8);
}

TEST(SwiGLU, Float32IsCloseToFloat64) {
  const auto wide = run(swiglu, randn({9, 38}, 1), randn({9, 19}, 2), randn({9}, 3));
  const auto narrow = run(swiglu, randn({9, 38}, 1, Dtype::kFloat32),
                          randn({9, 19}, 2, Dtype::kFloat32), randn({9}, 3, Dtype::kFloat32));
  EXPECT_EQ(narrow.y.dtype(), Dtype::kFloat32);
  EXPECT_TRUE(all_close(narrow.y, wide.y, 2e-6, 2e-6));
  EXPECT_TRUE(all_close(narrow.grad, wide.grad, 4e-6, 4e-6));
  EXPECT_TRUE(all_close(narrow.grad_weights, wide.grad_weights, 4e-6, 4e-6));
}

TEST(SwiGLU, LargeGatesGiveTheUpValueOrZero) {
  const Tensor gate_up = Tensor::from(std::vector<float>{1e4F, -1e4F, 3, 3}, {1, 4});
  const auto result = run(swiglu, gate_up, Tensor::ones({1, 2}));
  EXPECT_TRUE(all_close(result.y, Tensor::from(std::vector<float>{3e4F, 0}, {1, 2}), 0, 0));
  EXPECT_TRUE(
      all_close(result.grad, Tensor::from(std::vector<float>{3, 0, 1e4F, 0}, {1, 4}), 0, 0));
}

TEST(SwiGLU, TakesStridedInputsAndGradients) {
  const Tensor gate_up = transpose(randn({6, 4}, 1), 0, 1),
               grad_y = transpose(randn({3, 4}, 2), 0, 1);
  const Tensor weights = squeeze(narrow(randn({4, 2}, 3), 1, 1, 1), 1);
  ASSERT_FALSE(weights.is_contiguous());
  const auto strided = run(swiglu, gate_up, grad_y, weights);
  const auto dense = run(swiglu, contiguous(gate_up), contiguous(grad_y), contiguous(weights));
  EXPECT_TRUE(bitwise_equal(strided.y, dense.y));
  EXPECT_TRUE(bitwise_equal(strided.grad, dense.grad));
  EXPECT_TRUE(bitwise_equal(strided.grad_weights, dense.grad_weights));
}

TEST(SwiGLU, EmptyInputsGiveEmptyResultsAndGradients) {
  for (const Shape& shape : {Shape{0, 6}, Shape{3, 0}}) {
    const auto result = run(swiglu, Tensor::zeros(shape), Tensor::zeros({shape[0], shape[1] / 2}),
                            Tensor::ones({shape[0]}));
    EXPECT_EQ(result.y.shape(), (Shape{shape[0], shape[1] / 2}));
    EXPECT_EQ(result.grad.shape(), shape);
    EXPECT_TRUE(bitwise_equal(result.grad_weights, Tensor::zeros({shape[0]})));
  }
}

TEST(SwiGLU, ARowDependsNeitherOnTheOthersNorOnTheThreads) {
  const Tensor gate_up = randn({300, 74}, 1, Dtype::kFloat32);
  const Tensor grad_y = randn({300, 37}, 2, Dtype::kFloat32);
  const Tensor weights = randn({300}, 3, Dtype::kFloat32);
  const auto all = run(swiglu, gate_up, grad_y, weights);
  const auto some = run(swiglu, narrow(gate_up, 0, 123, 2), narrow(grad_y, 0, 123, 2),
                        narrow(weights, 0, 123, 2));
  EXPECT_TRUE(bitwise_equal(some.y, narrow(all.y, 0, 123, 2)));
  EXPECT_TRUE(bitwise_equal(some.grad, narrow(all.grad, 0, 123, 2)));
  EXPECT_TRUE(bitwise_equal(some.grad_weights, narrow(all.grad_weights, 0, 123, 2)));
  RankContext::current().set_threads(3);
  const auto threaded = run(swiglu, gate_up, grad_y, weights);
  RankContext::current().set_threads(1);
  EXPECT_TRUE(bitwise_equal(threaded.y, all.y));
  EXPECT_TRUE(bitwise_equal(threaded.grad, all.grad));
  EXPECT_TRUE(bitwise_equal(threaded.grad_weights, all.grad_weights));
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
            "swiglu: gate_up must be float32, float64 or bfloat16, got int64");
  EXPECT_EQ(message_of<ShapeError>([] {
              swiglu(randn({2, 4}), randn({2, 1}));
            }),
            "swiglu: weights must be [2] to match gate_up [2, 4], got [2, 1]");
  EXPECT_EQ(message_of<DtypeError>([] {
              swiglu(randn({2, 4}), Tensor::ones({2}));
            }),
            "swiglu: gate_up is float64 but weights is float32");
  EXPECT_EQ(message_of<DtypeError>([] {
              swiglu(Tensor::zeros({2, 4}, Dtype::kBFloat16), Tensor::ones({2}, Dtype::kBFloat16));
            }),
            "swiglu: weights must be float32 for gate_up in bfloat16, got bfloat16; convert it "
            "with ops::cast");
}

}  // namespace
}  // namespace moegrad::ops::swiglu_test
