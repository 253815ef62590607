// SPDX-License-Identifier: Apache-2.0
#include "ops/rms_norm_rope.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "framework/autograd/function.h"
#include "framework/tensor/fill.h"
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
    for (const auto& shape :
         {Shape{1, 1, 2}, Shape{3, 5, 6}, Shape{200, 1, 16}, Shape{50, 3, 34}, Shape{65, 4, 64},
          Shape{7, 2, 130}, Shape{3, 2, 300}, Shape{0, 2, 4}, Shape{3, 0, 4}}) {
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

TEST(RMSNormRope, LongHeadsInBFloat16HaveTheBitsOfFloat32RoundedOnce) {
  const Shape shape{5, 2, 300};
  const auto table = rope_table(Tensor::zeros({5}, Dtype::kInt64), 300, 1e4, Dtype::kFloat32);
  const Tensor narrow = randn(shape, 1, Dtype::kBFloat16, true);
  const Tensor wide = to_dtype(narrow.detach(), Dtype::kFloat32).set_requires_grad(true);
  const Tensor weight = randn({300}, 2, Dtype::kFloat32), grad = randn(shape, 3, Dtype::kBFloat16);
  const Tensor got = fused(narrow, weight, table), want = fused(wide, weight, table);
  got.backward(grad);
  want.backward(to_dtype(grad, Dtype::kFloat32));
  EXPECT_TRUE(bitwise_equal(got, to_dtype(want.detach(), Dtype::kBFloat16)));
  EXPECT_TRUE(bitwise_equal(to_dtype(narrow.grad(), Dtype::kBFloat16),
                            to_dtype(wide.grad(), Dtype::kBFloat16)));
}

TEST(RMSNormRope, RejectsDtypesThatDoNotGoTogether) {
  const auto message = [](Dtype x, Dtype weight, Dtype cos, Dtype sin) {
    return message_of<DtypeError>([&] {
      rms_norm_rope(Tensor::zeros({2, 1, 4}, x), Tensor::zeros({4}, weight),
                    {.cos = Tensor::zeros({2, 2}, cos), .sin = Tensor::zeros({2, 2}, sin)});
    });
  };
  constexpr auto kWide = Dtype::kFloat32, kNarrow = Dtype::kBFloat16;
  EXPECT_EQ(message(kNarrow, kNarrow, kWide, kWide),
            "rms_norm_rope: weight must be float32 for x in bfloat16, got bfloat16; convert it "
            "with ops::cast");
  EXPECT_EQ(message(kNarrow, kWide, kNarrow, kNarrow),
            "rms_norm_rope: cos must be float32 for x in bfloat16, got bfloat16; convert it with "
            "ops::cast");
  EXPECT_EQ(message(kWide, kWide, kWide, kNarrow),
            "rms_norm_rope: x is float32 but the table is float32 and bfloat16; convert it with "
            "ops::cast");
  EXPECT_EQ(message(Dtype::kInt64, Dtype::kInt64, kWide, kWide),
            "rms_norm_rope: x must be float32, float64 or bfloat16, got int64");
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
