// SPDX-License-Identifier: Apache-2.0
#include "ops/add_rms_norm.h"

#include <functional>

#include "framework/autograd/engine.h"
#include "ops/elementwise.h"
#include "ops/rms_norm.h"
#include "ops/views.h"
#include "tests/testing.h"

namespace moegrad::ops::add_rms_norm_test {
namespace {

using namespace moegrad::test;

constexpr double kEps = 1e-6;

using Form = std::function<AddRMSNormResult(const Tensor&, const Tensor&, const Tensor&)>;

AddRMSNormResult fused(const Tensor& x, const Tensor& residual, const Tensor& weight) {
  return add_rms_norm(x, residual, weight, kEps);
}

AddRMSNormResult composition(const Tensor& x, const Tensor& residual, const Tensor& weight) {
  const Tensor sum = x + residual;
  return {.sum = sum, .y = rms_norm(sum, weight, kEps)};
}

struct Inputs {
  Tensor x, residual, weight;
  Tensor grad_sum, grad_y;  // undefined for an output that nothing uses

  Inputs(const Shape& shape, Dtype dtype)
      : x(randn(shape, 1, dtype, true)),
        residual(randn(shape, 2, dtype, true)),
        weight(randn({shape[-1]}, 3, dtype, true)),
        grad_sum(randn(shape, 4, dtype)),
        grad_y(randn(shape, 5, dtype)) {}

  // Results, then the gradients as they stand after `backwards` of them.
  TensorList run(const Form& form, int backwards = 1) const {
    const TensorList leaves{x, residual, weight};
    for (const auto& leaf : leaves) leaf.set_grad(Tensor());
    TensorList found;
    for (int i = 0; i < backwards; ++i) {
      const auto result = form(x, residual, weight);
      TensorList roots, grads;
      const auto use = [&](const Tensor& root, const Tensor& grad) {
        if (!grad.defined()) return;
        roots.push_back(root);
        grads.push_back(grad);
      };
      use(result.sum, grad_sum);
      use(result.y, grad_y);
      run_backward(roots, grads, /*retain_graph=*/false);
      found = {result.sum.detach(), result.y.detach()};
    }
    for (const auto& leaf : leaves) found.push_back(leaf.grad());
    return found;
  }
};

void expect_same_bits(const TensorList& got, const TensorList& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(bitwise_equal(got[i], want[i])) << "tensor " << i;
  }
}

TEST(AddRMSNorm, HasTheBitsOfASumAndItsNorm) {
  for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    for (const auto& shape : {Shape{1}, Shape{9}, Shape{1, 1}, Shape{5, 1}, Shape{1, 37},
                              Shape{3, 5}, Shape{200, 33}, Shape{2, 65, 16}, Shape{0, 4}}) {
      const Inputs inputs(shape, dtype);
      expect_same_bits(inputs.run(fused), inputs.run(composition));
    }
  }
}

TEST(AddRMSNorm, EitherResultMayBeUnused) {
  Inputs sum_alone({70, 9}, Dtype::kFloat32);
  sum_alone.grad_y = Tensor();
  auto want = sum_alone.run(composition);
  ASSERT_FALSE(want[4].defined());  // the composition never meets the weight
  want[4] = Tensor::zeros({9});
  expect_same_bits(sum_alone.run(fused), want);

  Inputs y_alone({70, 9}, Dtype::kFloat32);
  y_alone.grad_sum = Tensor();
  expect_same_bits(y_alone.run(fused), y_alone.run(composition));
}

// x and residual are given the same gradient tensor: neither may see what is added to the other.
TEST(AddRMSNorm, GradientsThatGrowStayApart) {
  const Inputs inputs({70, 9}, Dtype::kFloat32);
  expect_same_bits(inputs.run(fused, 3), inputs.run(composition, 3));
  const auto x_elsewhere = [](const Form& form) {
    return [form](const Tensor& x, const Tensor& residual, const Tensor& weight) {
      const auto result = form(x * 2.0, residual, weight);
      return AddRMSNormResult{.sum = result.sum + x, .y = result.y * residual};
    };
  };
  expect_same_bits(inputs.run(x_elsewhere(fused)), inputs.run(x_elsewhere(composition)));
}

TEST(AddRMSNorm, TakesOneTensorTwice) {
  Inputs inputs({70, 9}, Dtype::kFloat32);
  inputs.residual = inputs.x;
  expect_same_bits(inputs.run(fused), inputs.run(composition));
}

TEST(AddRMSNorm, ReadsStridedGradients) {
  Inputs inputs({5, 3}, Dtype::kFloat64);
  inputs.grad_sum = transpose(randn({3, 5}, 4), 0, 1);
  inputs.grad_y = transpose(randn({3, 5}, 5), 0, 1);
  const auto got = inputs.run(fused);
  inputs.grad_sum = clone(inputs.grad_sum);
  inputs.grad_y = clone(inputs.grad_y);
  expect_same_bits(got, inputs.run(composition));
}

}  // namespace
}  // namespace moegrad::ops::add_rms_norm_test
