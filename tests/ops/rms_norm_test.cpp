// SPDX-License-Identifier: Apache-2.0
#include "ops/rms_norm.h"

#include <cmath>
#include <limits>
#include <optional>

#include "framework/runtime/rank_context.h"
#include "ops/add_rms_norm.h"
#include "ops/layer_norm.h"
#include "ops/rms_norm_rope.h"
#include "ops/views.h"
#include "tests/testing.h"

namespace moegrad::ops::rms_norm_test {
namespace {

using namespace moegrad::test;

struct Result {
  Tensor y, grad_x, grad_weight;
};

Result run(const Tensor& x, const Tensor& weight, const Tensor& grad_y, double eps = 1e-6) {
  Tensor x_leaf = x.detach(), weight_leaf = weight.detach();
  x_leaf.set_requires_grad(true);
  weight_leaf.set_requires_grad(true);
  const Tensor y = rms_norm(x_leaf, weight_leaf, eps);
  y.backward(grad_y);
  return {y.detach(), x_leaf.grad(), weight_leaf.grad()};
}

// The derivative of x_i / rms times w_i, element by element, in double.
Result reference(const Tensor& x, const Tensor& weight, const Tensor& grad_y, double eps = 1e-6) {
  const Tensor xs = to_dtype(x, Dtype::kFloat64), ws = to_dtype(weight, Dtype::kFloat64);
  const Tensor gs = to_dtype(grad_y, Dtype::kFloat64);
  Result result{zeros_like(xs), zeros_like(xs), zeros_like(ws)};
  const auto size = static_cast<std::size_t>(ws.numel());
  for (std::size_t begin = 0; begin < static_cast<std::size_t>(xs.numel()); begin += size) {
    const auto row = xs.data<double>().subspan(begin, size);
    const auto grad = gs.data<double>().subspan(begin, size);
    const auto w = ws.data<double>();
    double squares = 0;
    for (const double value : row) squares += value * value;
    const double rms = std::sqrt(squares / static_cast<double>(size) + eps);
    for (std::size_t i = 0; i < size; ++i) {
      result.y.mutable_data<double>()[begin + i] = row[i] / rms * w[i];
      result.grad_weight.mutable_data<double>()[i] += grad[i] * row[i] / rms;
      for (std::size_t j = 0; j < size; ++j) {
        const double through_rms = -row[j] * row[i] / (static_cast<double>(size) * rms * rms * rms);
        const double derivative = (i == j ? 1 / rms : 0) + through_rms;
        result.grad_x.mutable_data<double>()[begin + i] += grad[j] * w[j] * derivative;
      }
    }
  }
  return result;
}

TEST(RMSNorm, EqualsItsFormula) {
  for (const auto& shape :
       {Shape{1}, Shape{1, 1}, Shape{3, 5}, Shape{130, 16}, Shape{2, 65, 37}, Shape{3, 2, 4, 64}}) {
    const Tensor x = randn(shape, 1), weight = randn({shape[-1]}, 2), grad = randn(shape, 3);
    const auto actual = run(x, weight, grad);
    const auto expected = reference(x, weight, grad);
    EXPECT_TRUE(all_close(actual.y, expected.y, 1e-12, 1e-12));
    EXPECT_TRUE(all_close(actual.grad_x, expected.grad_x, 1e-11, 1e-11));
    EXPECT_TRUE(all_close(actual.grad_weight, expected.grad_weight, 1e-11, 1e-11));
  }
}

TEST(RMSNorm, AddsEpsToTheMeanSquare) {
  const Tensor x = randn({3, 5}, 1), weight = randn({5}, 2), grad = randn({3, 5}, 3);
  EXPECT_TRUE(all_close(run(x, weight, grad, 0.5).grad_x, reference(x, weight, grad, 0.5).grad_x,
                        1e-12, 1e-12));
  const auto zeros = run(Tensor::zeros({2, 4}), Tensor::ones({4}), Tensor::ones({2, 4}));
  EXPECT_TRUE(all_close(zeros.y, Tensor::zeros({2, 4}), 0, 0));
  EXPECT_TRUE(all_close(zeros.grad_x, Tensor::full({2, 4}, 1e3), 1e-5, 0));
}

TEST(RMSNorm, Float32IsCloseToFloat64) {
  const Shape shape{200, 96};
  const Tensor x = randn(shape, 1, Dtype::kFloat32), weight = randn({96}, 2, Dtype::kFloat32);
  const Tensor grad = randn(shape, 3, Dtype::kFloat32);
  const auto actual = run(x, weight, grad);
  const auto expected = reference(x, weight, grad);
  EXPECT_TRUE(all_close(actual.y, expected.y, 1e-6, 1e-6));
  EXPECT_TRUE(all_close(actual.grad_x, expected.grad_x, 1e-5, 1e-5));
  EXPECT_TRUE(all_close(actual.grad_weight, expected.grad_weight, 1e-5, 1e-4));
}

TEST(RMSNorm, GradientsMatchFiniteDifferences) {
  const auto f = [](const TensorList& in) { return TensorList{rms_norm(in[0], in[1], 1e-3)}; };
  EXPECT_TRUE(moegrad::gradients_agree(f, {variable({2, 3, 5}, 1), variable({5}, 2)}));
  EXPECT_TRUE(moegrad::gradients_agree(f, {variable({3, 1}, 1), variable({1}, 2)}));
  EXPECT_TRUE(moegrad::gradients_agree(f, {variable({2, 21}, 1), randn({21}, 2)}));
  EXPECT_TRUE(moegrad::gradients_agree(f, {randn({70, 3}, 1), variable({3}, 2)}));
}

TEST(RMSNorm, ARowDoesNotDependOnTheOthers) {
  const Tensor x = randn({200, 40}, 1, Dtype::kFloat32);
  const Tensor weight = randn({40}, 2, Dtype::kFloat32);
  const Tensor grad = randn({200, 40}, 3, Dtype::kFloat32);
  const auto all = run(x, weight, grad);
  const auto some = run(narrow(x, 0, 63, 90), weight, narrow(grad, 0, 63, 90));
  EXPECT_TRUE(bitwise_equal(some.y, narrow(all.y, 0, 63, 90)));
  EXPECT_TRUE(bitwise_equal(some.grad_x, narrow(all.grad_x, 0, 63, 90)));
}

TEST(RMSNorm, GivesTheSameBitsWithThreeThreads) {
  const Tensor x = randn({500, 33}, 1, Dtype::kFloat32);
  const Tensor weight = randn({33}, 2, Dtype::kFloat32);
  const Tensor grad = randn({500, 33}, 3, Dtype::kFloat32);
  const auto one = run(x, weight, grad);
  RankContext::current().set_threads(3);
  const auto three = run(x, weight, grad);
  RankContext::current().set_threads(1);
  EXPECT_TRUE(bitwise_equal(three.y, one.y));
  EXPECT_TRUE(bitwise_equal(three.grad_x, one.grad_x));
  EXPECT_TRUE(bitwise_equal(three.grad_weight, one.grad_weight));
}

TEST(RMSNorm, ReadsStridedInputsAndGradients) {
  const Tensor x = transpose(randn({5, 3}, 1), 0, 1);
  const Tensor weight = squeeze(narrow(randn({5, 2}, 2), 1, 1, 1), 1);  // [5], stride 2
  const Tensor grad = transpose(randn({5, 3}, 3), 0, 1);
  const auto strided = run(x, weight, grad);
  const auto expected = run(clone(x), clone(weight), clone(grad));
  EXPECT_TRUE(bitwise_equal(strided.y, expected.y));
  EXPECT_TRUE(bitwise_equal(strided.grad_x, expected.grad_x));
  EXPECT_TRUE(bitwise_equal(strided.grad_weight, expected.grad_weight));
}

TEST(RMSNorm, NoRowsGiveAZeroWeightGradient) {
  const auto result = run(Tensor::zeros({0, 4}), Tensor::ones({4}), Tensor::zeros({0, 4}));
  EXPECT_EQ(result.y.shape(), (Shape{0, 4}));
  EXPECT_EQ(result.grad_x.shape(), (Shape{0, 4}));
  EXPECT_TRUE(bitwise_equal(result.grad_weight, Tensor::zeros({4})));
}

TEST(RMSNorm, RejectsInputsThatDoNotFitAndNamesThem) {
  EXPECT_EQ(message_of<ShapeError>([] { rms_norm(Tensor::zeros({}), Tensor::zeros({1})); }),
            "rms_norm: x needs a last dimension of at least 1, got []");
  EXPECT_EQ(message_of<ShapeError>([] {
              rms_norm(Tensor::zeros({2, 0}), Tensor::zeros({0}));
            }),
            "rms_norm: x needs a last dimension of at least 1, got [2, 0]");
  EXPECT_EQ(message_of<ShapeError>([] {
              rms_norm(Tensor::zeros({2, 5}), Tensor::zeros({4}));
            }),
            "rms_norm: weight must be [5] to match x [2, 5], got [4]");
  EXPECT_EQ(message_of<DtypeError>([] {
              rms_norm(Tensor::zeros({2, 5}), Tensor::zeros({5}, Dtype::kFloat64));
            }),
            "rms_norm: x is float32 but weight is float64");
}

struct Dtypes {
  Dtype x, y;
};

TEST(RMSNorm, TheResultMayHaveAnotherDtype) {
  constexpr auto kWide = Dtype::kFloat32, kNarrow = Dtype::kBFloat16;
  for (const auto& [x_dtype, y_dtype] :
       {Dtypes{kWide, kNarrow}, {kNarrow, kWide}, {kNarrow, kNarrow}}) {
    for (const auto& shape : {Shape{1, 1}, Shape{3, 7}, Shape{70, 2, 33}, Shape{0, 4}}) {
      const Tensor x = randn(shape, 1, x_dtype, true);
      const Tensor weight = randn({shape[-1]}, 2, kWide, true), grad = randn(shape, 3, y_dtype);
      const Tensor y = rms_norm(x, weight, 1e-6, 1, y_dtype);
      y.backward(grad);
      const auto want = run(to_dtype(x.detach(), kWide), weight, to_dtype(grad, kWide));
      EXPECT_TRUE(bitwise_equal(y, to_dtype(want.y, y_dtype)));
      EXPECT_TRUE(bitwise_equal(x.grad(), to_dtype(to_dtype(want.grad_x, x_dtype), kWide)));
      EXPECT_TRUE(bitwise_equal(weight.grad(), want.grad_weight));
    }
  }
}

TEST(RMSNorm, RejectsDtypesThatDoNotGoTogether) {
  constexpr auto kNarrow = Dtype::kBFloat16;
  const auto message = [](Dtype x, Dtype weight, std::optional<Dtype> y = std::nullopt) {
    return message_of<DtypeError>([&] {
      rms_norm(Tensor::zeros({2, 5}, x), Tensor::zeros({5}, weight), 1e-6, 1, y);
    });
  };
  EXPECT_EQ(message(kNarrow, kNarrow),
            "rms_norm: weight must be float32 for x in bfloat16, got bfloat16; convert it with "
            "ops::cast");
  EXPECT_EQ(message(kNarrow, Dtype::kFloat64),
            "rms_norm: weight must be float32 for x in bfloat16, got float64");
  EXPECT_EQ(message(Dtype::kFloat32, kNarrow),
            "rms_norm: x is float32 but weight is bfloat16; convert it with ops::cast");
  EXPECT_EQ(message(Dtype::kInt64, Dtype::kInt64),
            "rms_norm: x must be float32, float64 or bfloat16, got int64");
  EXPECT_EQ(message(Dtype::kFloat64, Dtype::kFloat64, kNarrow),
            "rms_norm: dtype must be float64 for x in float64, got bfloat16");
  EXPECT_EQ(message(Dtype::kFloat32, Dtype::kFloat32, Dtype::kFloat64),
            "rms_norm: dtype must be float32 or bfloat16 for x in float32, got float64");
  EXPECT_EQ(message(kNarrow, Dtype::kFloat32, Dtype::kInt64),
            "rms_norm: dtype must be float32 or bfloat16 for x in bfloat16, got int64");
}

TEST(RMSNorm, RejectsAnEpsThatIsNone) {
  const Tensor x = randn({2, 4}), w = randn({4}), y = randn({2, 1, 4});
  const RopeTable table{.cos = randn({2, 4}), .sin = randn({2, 4})};
  for (const double eps :
       {-0.1, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    EXPECT_THROW(rms_norm(x, w, eps), ValueError) << eps;
    EXPECT_THROW(layer_norm(x, w, {}, eps), ValueError) << eps;
    EXPECT_THROW(add_rms_norm(x, x, w, eps), ValueError) << eps;
    EXPECT_THROW(rms_norm_rope(y, w, table, eps), ValueError) << eps;
  }
  EXPECT_EQ(message_of<ValueError>([&] { rms_norm(x, w, -1); }),
            "rms_norm: eps must be finite and >= 0, got -1");
}

TEST(RMSNorm, RejectsHeadsThatDoNotDivideTheRows) {
  const Tensor x = randn({3, 4, 5}), w = randn({5});
  EXPECT_EQ(message_of<ValueError>([&] { rms_norm(x, w, 1e-6, 0); }),
            "rms_norm: heads must divide the 12 rows of x [3, 4, 5], got 0");
  EXPECT_THROW(rms_norm(x, w, 1e-6, 5), ValueError);
  rms_norm(x, w, 1e-6, 4);
}

// As [T, D] in PyTorch's words: batches are rows, and take as much memory.
TEST(RMSNorm, SequencesOfABatchAreRows) {
  const Tensor x = randn({2, 300, 4}, 1, Dtype::kFloat32),
               grad = randn({2, 300, 4}, 2, Dtype::kFloat32);
  const Tensor batched = Tensor::ones({4}).set_requires_grad(true);
  const Tensor flat = Tensor::ones({4}).set_requires_grad(true);
  rms_norm(x, batched).backward(grad);
  rms_norm(view(x, {600, 4}), flat).backward(view(grad, {600, 4}));
  EXPECT_TRUE(bitwise_equal(batched.grad(), flat.grad()));
}

}  // namespace
}  // namespace moegrad::ops::rms_norm_test
