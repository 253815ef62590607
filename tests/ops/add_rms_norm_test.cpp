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

TEST(AddRMSNorm, EitherOperandAndTheNormMayBeBFloat16) {
  constexpr auto kWide = Dtype::kFloat32, kNarrow = Dtype::kBFloat16;
  for (const auto& shape : {Shape{1, 1}, Shape{3, 7}, Shape{140, 33}, Shape{0, 4}}) {
    for (const auto dtype : {kWide, kNarrow}) {
      const Inputs wide(shape, kWide);
      const auto rounded = [](const Tensor& x) { return to_dtype(x.detach(), kNarrow); };
      for (const bool first : {true, false}) {
        Inputs mixed = wide, same = wide;  // the same numbers in `same`
        auto& branch = first ? mixed.x : mixed.residual;
        branch = rounded(branch).set_requires_grad(true);
        (first ? same.x : same.residual) = to_dtype(branch.detach(), kWide).set_requires_grad(true);
        mixed.grad_y = to_dtype(wide.grad_y, dtype);
        same.grad_y = to_dtype(mixed.grad_y, kWide);
        const auto got = mixed.run([dtype](const Tensor& x, const Tensor& r, const Tensor& w) {
          return add_rms_norm(x, r, w, kEps, dtype);
        });
        auto want = same.run(fused);
        want[1] = to_dtype(want[1], dtype);
        expect_same_bits(got, want);
      }
    }
  }
}

TEST(AddRMSNorm, RejectsDtypesThatDoNotGoTogether) {
  constexpr auto kWide = Dtype::kFloat64, kSingle = Dtype::kFloat32, kNarrow = Dtype::kBFloat16;
  const auto message = [](Dtype x, Dtype residual, Dtype weight, Dtype y) {
    return message_of<DtypeError>([&] {
      add_rms_norm(Tensor::zeros({2, 5}, x), Tensor::zeros({2, 5}, residual),
                   Tensor::zeros({5}, weight), kEps, y);
    });
  };
  EXPECT_EQ(message(kNarrow, kNarrow, kSingle, kNarrow),
            "add_rms_norm: x or residual must be float32, got two of bfloat16; convert it with "
            "ops::cast");
  EXPECT_EQ(message(kNarrow, kWide, kWide, kWide),
            "add_rms_norm: x is bfloat16 but residual is float64 and weight float64; convert it "
            "with ops::cast");
  EXPECT_EQ(message(kSingle, kSingle, kNarrow, kSingle),
            "add_rms_norm: x is float32 but residual is float32 and weight bfloat16; convert it "
            "with ops::cast");
  EXPECT_EQ(message(Dtype::kInt64, kSingle, kSingle, kSingle),
            "add_rms_norm: x must be float32, float64 or bfloat16, got int64");
  EXPECT_EQ(message(kWide, kWide, kWide, kNarrow),
            "add_rms_norm: dtype must be float64 for the sum in float64, got bfloat16");
  EXPECT_EQ(message(kNarrow, kSingle, kSingle, kWide),
            "add_rms_norm: dtype must be float32 or bfloat16 for the sum in float32, got float64");
}

}  // namespace
}  // namespace moegrad::ops::add_rms_norm_test
