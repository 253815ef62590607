// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/gradcheck.h"

#include <gtest/gtest.h>

#include "tests/framework/autograd/test_functions.h"
#include "tests/testing.h"

namespace moegrad {
namespace {

using testing::bitwise_equal;
using testing::message_of;
using testing::mul;
using testing::probe;
using testing::randn;
using testing::variable;

TensorList cube(const TensorList& in) { return {mul(mul(in[0], in[0]), in[0])}; }

TEST(Gradcheck, GradientsMatchFiniteDifferences) {
  EXPECT_TRUE(gradcheck(cube, {variable({2, 3})}));
  EXPECT_TRUE(testing::gradcheck(cube, {variable({0, 3})}));
  EXPECT_TRUE(testing::gradcheck(cube, {variable({})}));
}

TEST(Gradcheck, SaysWhichElementDisagrees) {
  const auto wrong = [](const TensorList& in) -> TensorList {
    return {probe(mul(in[0], in[1]), "wrong", [](const Tensor& grad) -> TensorList {
      Tensor bad = clone(grad);
      bad.mutable_data<double>()[4] = 0;
      return {bad};
    })};
  };
  const auto ones = [] {
    Tensor tensor = Tensor::ones({2, 3}, Dtype::kFloat64);
    return tensor.set_requires_grad(true);
  };
  const auto result = gradcheck(wrong, {randn({2, 3}), ones()});
  EXPECT_FALSE(result.ok);
  EXPECT_EQ(
      result.message.rfind("gradcheck: gradient of input 1 at [1, 1] is 0 by backward and ", 0), 0U)
      << result.message;
  const auto assertion = testing::gradcheck(wrong, {randn({2, 3}), ones()});
  EXPECT_FALSE(assertion);
  EXPECT_EQ(assertion.message(), result.message);
}

// The elements of x - mean(x) sum to zero, as those of a softmax sum to one: a constant
// cotangent would not see that backward returns zeros.
TEST(Gradcheck, AConstantSumDoesNotHideABackwardOfZeros) {
  class Center final : public Function {
   public:
    std::string_view name() const override { return "center"; }
    Tensor forward(const Tensor& x) {
      Tensor out = clone(x);
      double mean = 0;
      for (const auto value : x.data<double>()) mean += value / static_cast<double>(x.numel());
      for (auto& value : out.mutable_data<double>()) value -= mean;
      return out;
    }
    TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
      return {zeros_like(grads[0])};
    }
  };
  const auto f = [](const TensorList& in) -> TensorList {
    return {Function::apply(std::make_shared<Center>(), in[0])};
  };
  EXPECT_FALSE(gradcheck(f, {variable({4})}));
}

TEST(Gradcheck, AMissingGradientCountsAsZero) {
  const auto cut = [](const TensorList& in) -> TensorList { return {mul(in[0], in[1].detach())}; };
  const auto result = gradcheck(cut, {variable({2}, 1), variable({2}, 2)});
  EXPECT_EQ(result.message.rfind("gradcheck: gradient of input 1 at [0] is 0 by backward", 0), 0U);
}

TEST(Gradcheck, ANanIsADisagreement) {
  const auto f = [](const TensorList& in) -> TensorList {
    return {probe(in[0], "nan", [](const Tensor& grad) -> TensorList {
      return {Tensor::full(grad.shape(), std::nan(""), grad.dtype())};
    })};
  };
  EXPECT_FALSE(gradcheck(f, {variable({1})}));
}

TEST(Gradcheck, LeavesInputsAsTheyWere) {
  const Tensor x = variable({3}), before = clone(x);
  x.set_grad(Tensor::ones({3}, Dtype::kFloat64));
  EXPECT_TRUE(gradcheck(cube, {x}));
  EXPECT_TRUE(bitwise_equal(x, before));
  EXPECT_FALSE(x.grad().defined());
}

TEST(Gradcheck, IgnoresIntegersAbsentTensorsAndInputsWithoutGradient) {
  const auto f = [](const TensorList& in) -> TensorList { return {mul(in[0], in[1]), in[2]}; };
  EXPECT_TRUE(testing::gradcheck(
      f, {variable({2}), randn({2}, 2), Tensor::zeros({2}, Dtype::kInt64), Tensor()}));
}

TEST(Gradcheck, RefusesWhatItCannotCheck) {
  const Tensor x = variable({2});
  EXPECT_EQ(message_of<Error>([] { gradcheck(cube, {randn({2})}); }),
            "gradcheck: no input requires a gradient");
  EXPECT_EQ(message_of<Error>([&] { gradcheck(cube, {mul(x, x)}); }),
            "gradcheck: input 0 must be a contiguous leaf");
  EXPECT_EQ(message_of<DtypeError>(
                [] { gradcheck(cube, {randn({2}, 1, Dtype::kFloat32, /*requires_grad=*/true)}); }),
            "gradcheck: input 0 must be float64, got float32");
}

}  // namespace
}  // namespace moegrad
