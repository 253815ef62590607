// SPDX-License-Identifier: Apache-2.0
#include "ops/rms_norm_rope.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "framework/autograd/function.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/views.h"
#include "tests/testing.h"

namespace moegrad::ops::rms_norm_rope_test {
namespace {

using namespace moegrad::test;

constexpr double kEps = 1e-6;

using Form = std::function<Tensor(const Tensor&, const Tensor&, const RopeTable&)>;

Tensor fused(const Tensor& x, const Tensor& weight, const RopeTable& table) {
  return rms_norm_rope(x, weight, table, kEps);
}

Tensor composition(const Tensor& x, const Tensor& weight, const RopeTable& table) {
  return rope(rms_norm(x, weight, kEps, std::max<std::int64_t>(1, x.dim(1))), table);
}

// y, and the gradients of x and weight.
TensorList run(const Form& form, const Shape& shape, Dtype dtype, const Tensor& grad_y) {
  std::vector<std::int64_t> positions;
  for (std::int64_t t = 0; t < shape[0]; ++t) positions.push_back(7 * t % 1000);
  const auto table = rope_table(Tensor::from(positions, {shape[0]}), shape[2], 1e4, dtype);
  const Tensor x = randn(shape, 1, dtype, true), weight = randn({shape[2]}, 2, dtype, true);
  const Tensor y = form(x, weight, table);
  y.backward(grad_y);
  return {y.detach(), x.grad(), weight.grad()};
}

void expect_same_bits(const TensorList& got, const TensorList& want) {
  for (std::size_t i = 0; i < want.size(); ++i) {
    EXPECT_TRUE(bitwise_equal(got[i], want[i])) << "tensor " << i;
  }
}

TEST(RMSNormRope, HasTheBitsOfANormAndItsRotation) {
  for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    for (const auto& shape : {Shape{1, 1, 2}, Shape{3, 5, 6}, Shape{200, 1, 16}, Shape{50, 3, 34},
                              Shape{65, 4, 64}, Shape{7, 2, 130}, Shape{0, 2, 4}, Shape{3, 0, 4}}) {
      const Tensor grad_y = randn(shape, 3, dtype);
      expect_same_bits(run(fused, shape, dtype, grad_y), run(composition, shape, dtype, grad_y));
    }
  }
}

TEST(RMSNormRope, ReadsStridedGradients) {
  const Shape shape{5, 3, 8};
  const Tensor grad_y = transpose(randn({3, 5, 8}, 3), 0, 1);
  expect_same_bits(run(fused, shape, Dtype::kFloat64, grad_y),
                   run(composition, shape, Dtype::kFloat64, clone(grad_y)));
}

TEST(RMSNormRope, SavesNoRotatedOrNormedCopy) {
  const Tensor x = randn({6, 2, 8}, 1, Dtype::kFloat32, true);
  const Tensor weight = randn({8}, 2, Dtype::kFloat32, true);
  const auto table = rope_table(Tensor::zeros({6}, Dtype::kInt64), 8, 1e4, Dtype::kFloat32);
  const Tensor y = rms_norm_rope(x, weight, table);
  const auto floats = x.numel() + weight.numel() + table.cos.numel() + table.sin.numel() + 6 * 2;
  EXPECT_EQ(y.grad_fn()->saved_bytes(), 4 * floats);
}

}  // namespace
}  // namespace moegrad::ops::rms_norm_rope_test
