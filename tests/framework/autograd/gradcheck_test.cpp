// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/gradcheck.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "framework/autograd/checkpoint.h"
#include "framework/runtime/grad_mode.h"
#include "tests/framework/autograd/test_functions.h"
#include "tests/testing.h"

namespace moegrad::gradcheck_test {
namespace {

using namespace test;

constexpr GradcheckOptions kFull;
constexpr GradcheckOptions kFast{.atol = kFull.atol, .rtol = kFull.rtol, .fast_mode = true};

TensorList cube(const TensorList& in) { return {mul(mul(in[0], in[0]), in[0])}; }

// PyTorch's bounds.
constexpr GradcheckOptions kWide{.atol = 1e-5, .rtol = 1e-3};

TEST(Gradcheck, DefaultsAreThoseOfPyTorchExceptForTighterBounds) {
  const GradcheckOptions options;
  EXPECT_EQ(options.eps, 1e-6);
  EXPECT_EQ(options.atol, 1e-7);
  EXPECT_EQ(options.rtol, 1e-5);
  EXPECT_EQ(options.nondet_tol, 0.0);
  EXPECT_TRUE(options.check_undefined_grad);
  EXPECT_FALSE(options.fast_mode);
}

TEST(Gradcheck, TakesOtherBounds) {
  const auto slightly_wrong = [](const TensorList& in) -> TensorList {
    return {probe(in[0], "scale", [](const Tensor& grad) -> TensorList {
      return {edited(grad, [](auto g) {
        for (auto& value : g) value *= 1.0005;
      })};
    })};
  };
  EXPECT_TRUE(gradcheck(slightly_wrong, {variable({2})}, kWide));
  EXPECT_FALSE(gradients_agree(slightly_wrong, {variable({2})}));
}

TEST(Gradcheck, GradientsMatchFiniteDifferences) {
  const auto several = [](const TensorList& in) -> TensorList {
    auto parts = halves(mul(in[0], in[1]));
    return {parts[1], mul(in[0], in[0]), mul(parts[0], parts[1]), in[1]};
  };
  for (const auto& options : {kFull, kFast, GradcheckOptions{}}) {
    for (const Shape& shape : {Shape{2, 3}, Shape{0, 3}, Shape{}}) {
      EXPECT_TRUE(gradients_agree(cube, {variable(shape)}, options)) << shape;
    }
    EXPECT_TRUE(gradients_agree(several, {variable({6}, 1), variable({6}, 2)}, options));
    EXPECT_TRUE(gradients_agree(several, {variable({0}, 1), variable({0}, 2)}, options));
  }
}

TEST(Gradcheck, RunsAlsoWhereTheTapeIsOff) {
  const NoGradGuard no_grad;
  EXPECT_TRUE(gradients_agree(cube, {variable({2})}));
}

// The elements of x - mean(x) sum to zero, as those of a softmax sum to one: a constant
// cotangent would not see that backward returns zeros.
TEST(Gradcheck, AConstantSumDoesNotHideABackwardOfZeros) {
  const auto center = [](const Tensor& x) {
    double mean = 0;
    for (const auto value : x.data<double>()) mean += value / static_cast<double>(x.numel());
    return edited(x, [&](auto values) {
      for (auto& value : values) value -= mean;
    });
  };
  const auto f = [&](const TensorList& in) -> TensorList {
    return {unary(in[0], "center", center, zeros_like)};
  };
  for (const auto& options : {kFull, kFast}) {
    EXPECT_EQ(gradcheck(f, {variable({4})}, options).kind, GradcheckFailure::kJacobianMismatch);
  }
}

TEST(Gradcheck, FullModeMovesEveryElementAndFastModeEveryInput) {
  int calls = 0, backwards = 0;
  const auto f = [&](const TensorList& in) -> TensorList {
    ++calls;
    return {probe(mul(in[0], in[1]), "count", [&](const Tensor& grad) -> TensorList {
      ++backwards;
      return {grad};
    })};
  };
  const TensorList inputs = {variable({3, 2}, 1), variable({3, 2}, 2)};
  EXPECT_TRUE(gradcheck(f, inputs, kFull));
  // Both inputs and the output are edited, between two backwards of a forward of their own.
  EXPECT_EQ(calls, 1 + 2 * 12 + 3);
  EXPECT_EQ(backwards, 3 + 2 * 6 + 1 + 2 * 3);  // random twice, zeros; each element twice; random
  calls = backwards = 0;
  EXPECT_TRUE(gradcheck(f, inputs, kFast));
  EXPECT_EQ(calls, 1 + 2 * 2 + 3);
  EXPECT_EQ(backwards, 3 + 2 + 2 * 3);
}

// As many elements may each be off by atol.
TEST(Gradcheck, FastModeAllowsTheSumOfTheErrorsThatFullModeAllows) {
  for (const double error : {0.9e-7, 1.1e-7}) {
    const auto repeat = [](const Tensor& x) {
      return Tensor::full({100}, x.item(), Dtype::kFloat64);
    };
    const auto add_up = [=](const Tensor& grad_output) {
      double sum = 0;
      for (const auto grad : grad_output.data<double>()) sum += grad + error * std::abs(grad);
      return Tensor::full({1}, sum, Dtype::kFloat64);
    };
    const auto f = [&](const TensorList& in) -> TensorList {
      return {unary(in[0], "repeat", repeat, add_up)};
    };
    const auto result = gradcheck(f, {leaf_of({2})}, {.rtol = 0, .fast_mode = true});
    EXPECT_EQ(static_cast<bool>(result), error < 1e-7) << result.message;
  }
}

TEST(Gradcheck, AMissingGradientCountsAsZero) {
  const auto cut = [](const TensorList& in) -> TensorList { return {mul(in[0], in[1].detach())}; };
  for (const auto& options : {GradcheckOptions{}, GradcheckOptions{.fast_mode = true}}) {
    const auto result = gradcheck(cut, {leaf_of({2, 3}), leaf_of({4, 5})}, options);
    EXPECT_EQ(result.kind, GradcheckFailure::kJacobianMismatch);
    EXPECT_EQ(result.message,
              "gradcheck: gradient of output 0 at [1] with respect to input 1 at [1] is 0 by "
              "backward and 3 by central differences, off by 3 where 3.01e-05 is allowed; 2 of 8 "
              "elements disagree, this one most");
  }
}

TEST(Gradcheck, ANanAgreesWithNothing) {
  const auto f = [](const TensorList& in) -> TensorList {
    return {probe(in[0], "nan", [](const Tensor& grad) -> TensorList {
      const bool zeros = grad.data<double>()[0] == 0;
      return {Tensor::full(grad.shape(), zeros ? 0 : std::nan(""), grad.dtype())};
    })};
  };
  for (const auto& options : {kFull, kFast}) {
    EXPECT_EQ(gradcheck(f, {variable({1})}, options).kind, GradcheckFailure::kJacobianMismatch);
  }
}

// Jumps at zero, so that the central difference there is infinite; `slope` is what backward says.
Tensor step(const Tensor& x, double slope) {
  return unary(
      x, "step",
      [](const Tensor& from) {
        return edited(from, [](auto y) { y[0] = std::copysign(1.7e308, y[0]); });
      },
      [=](const Tensor& grad) {
        return edited(grad, [&](auto g) { g[0] = g[0] == 0 ? 0 : g[0] * slope; });
      });
}

// The bound atol + rtol * infinity would allow anything.
TEST(Gradcheck, AnInfiniteNumericGradientAgreesWithAnInfiniteOneAlone) {
  for (const auto& options : {kFull, kFast}) {
    for (const double slope : {0.0, 1e300, std::numeric_limits<double>::infinity()}) {
      const auto f = [=](const TensorList& in) -> TensorList { return {step(in[0], slope)}; };
      const auto kind = gradcheck(f, {leaf_of({0})}, options).kind;
      EXPECT_EQ(kind,
                std::isinf(slope) ? GradcheckFailure::kNone : GradcheckFailure::kJacobianMismatch);
    }
  }
}

TEST(Gradcheck, AnInfinityThatStaysHasDerivativeZero) {
  const auto mask_with = [](double value) {
    return [=](const Tensor& x) { return edited(x, [&](auto y) { y[0] = value; }); };
  };
  const auto f = [&](const TensorList& in) -> TensorList {
    return {
        unary(in[0], "mask", mask_with(-std::numeric_limits<double>::infinity()), mask_with(0))};
  };
  EXPECT_TRUE(gradients_agree(f, {variable({3})}));
}

// y = f(x) element by element, with dL/dx = f'(x) dL/dy.
class Elementwise final : public Function {
 public:
  using F = double (*)(double);
  Elementwise(F f, F derivative) : f_(f), derivative_(derivative) {}
  std::string_view name() const override { return "elementwise"; }
  Tensor forward(const Tensor& x) {
    x_ = x;
    return edited(x, [&](auto y) { std::ranges::transform(y, y.begin(), f_); });
  }
  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    const Tensor slope =
        edited(x_.unpack(), [&](auto y) { std::ranges::transform(y, y.begin(), derivative_); });
    return {test::zip(grads[0], slope, std::multiplies<>())};
  }

 private:
  F f_, derivative_;
  SavedTensor x_{*this};
};

TEST(Gradcheck, SaysWhereAValueOrADerivativeIsNotFinite) {
  const auto root = [](double x) { return std::sqrt(x); };
  const auto slope_of_root = [](double x) { return 0.5 / std::sqrt(x); };
  const auto exp = [](double x) { return std::exp(x); };
  struct Case {
    Elementwise::F f, derivative;
    double x;
    std::string message;
  };
  const std::vector<Case> cases{
      {root, slope_of_root, -1,
       "gradcheck: output 0 at [1] is nan: the function must have a value at its inputs"},
      {root, slope_of_root, 0,
       "gradcheck: for a grad_output of zeros the gradient of input 0 at [1] is nan; the function "
       "must have a finite value and a finite derivative at its inputs"},
      {root, slope_of_root, 1e-7,
       "gradcheck: the derivative of output 0 at [1] with respect to input 0 at [1] is nan by "
       "central differences: the function must have a value eps = 1e-06 to either side of its "
       "inputs"},
      {exp, exp, 1000,
       "gradcheck: for a grad_output of zeros the gradient of input 0 at [1] is nan; the function "
       "must have a finite value and a finite derivative at its inputs: output 0 at [1] is inf"},
  };
  for (const auto& [f, derivative, x, message] : cases) {
    for (const auto& options : {kFull, kFast}) {
      const auto result = gradcheck(
          [&f = f, &derivative = derivative](const TensorList& in) -> TensorList {
            return {apply<Elementwise>(made_with(f, derivative), in[0])};
          },
          {leaf_of({1, x})}, options);
      EXPECT_EQ(result.kind, GradcheckFailure::kNotFinite) << x;
      EXPECT_EQ(result.message, message);
    }
  }
}

TEST(Gradcheck, FollowsGradientsThroughARecomputedBlock) {
  const auto f = [](const TensorList& in) { return checkpoint(cube, in); };
  for (const auto& options : {kFull, kFast}) {
    EXPECT_TRUE(gradients_agree(f, {variable({3})}, options));
  }
}

TEST(Gradcheck, ThrowsItsFailureOnRequest) {
  gradcheck(cube, {variable({2})}).or_throw();
  try {
    gradcheck(cube, {randn({2})}).or_throw();
    ADD_FAILURE() << "no exception";
  } catch (const GradcheckError& error) {
    EXPECT_EQ(error.kind(), GradcheckFailure::kNoInputRequiresGrad);
    EXPECT_STREQ(error.what(), "gradcheck: no input requires a gradient");
  }
}

TEST(Gradcheck, LogsTheWarningsOfWhatPassesOnRequest) {
  const Tensor x = randn({2}, 1, Dtype::kFloat32, true);
  const auto f = [](const TensorList& in) -> TensorList { return {mul(in[0], in[0])}; };
  const auto result = gradcheck(f, {x}, {.eps = 1e-2, .atol = 1e-3, .rtol = 1e-3});
  ASSERT_TRUE(result) << result.message;
  ::testing::internal::CaptureStderr();
  result.or_throw();
  const auto text = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(
      text.find("warning [rank 0] gradcheck: input 0 is float32; eps and the bounds are meant "
                "for float64, and will likely not be kept\n"),
      std::string::npos)
      << text;
}

// 0.02 % of one element of the gradient, large or small.
TEST(Gradcheck, SeesAnErrorOfTwoInTenThousand) {
  const auto off = [](const TensorList& in) -> TensorList {
    return {test::probe(in[0], "off", [](const Tensor& grad) -> TensorList {
      return {test::edited(grad, [](auto g) { g[1] *= 1.0002; })};
    })};
  };
  for (const double scale : {1e-2, 1.0, 1e3}) {
    const auto f = [&](const TensorList& in) -> TensorList {
      return {mul(off(in)[0], Tensor::full({3}, scale, Dtype::kFloat64))};
    };
    for (const bool fast : {false, true}) {
      const auto result = gradcheck(f, {leaf_of({1, 2, 3})}, {.fast_mode = fast});
      EXPECT_EQ(result.kind, GradcheckFailure::kJacobianMismatch) << scale << " fast " << fast;
    }
  }
}

TEST(Gradcheck, NamesTheWorstElement) {
  const auto f = [](const TensorList& in) -> TensorList {
    return {test::probe(in[0], "off", [](const Tensor& grad) -> TensorList {
      return {test::edited(grad, [](auto g) {
        g[0] *= 1.5;
        g[2] *= 3.0;
      })};
    })};
  };
  const auto result = gradcheck(f, {leaf_of({1, 2, 3})});
  EXPECT_EQ(
      result.message,
      "gradcheck: gradient of output 0 at [2] with respect to input 0 at [2] is 3 by backward "
      "and 1 by central differences, off by 2 where 1.01e-05 is allowed; 2 of 9 elements "
      "disagree, this one most");
}

TEST(Gradcheck, FailuresPrintTheirNames) {
  const auto printed = [](GradcheckFailure kind) {
    std::ostringstream text;
    text << kind;
    return text.str();
  };
  EXPECT_EQ(printed(GradcheckFailure::kNone), "kNone");
  EXPECT_EQ(printed(GradcheckFailure::kJacobianMismatch), "kJacobianMismatch");
  EXPECT_EQ(printed(GradcheckFailure::kEditNotNoticed), "kEditNotNoticed");
}

TEST(Gradcheck, TheAssertionTellsMessageAndWarnings) {
  const auto f = [](const TensorList& in) -> TensorList { return {in[0].detach()}; };
  const Tensor x = randn({1}, 1, Dtype::kFloat32, true);
  const auto result = gradcheck(f, {x}, kFull);
  const auto assertion = gradients_agree(f, {x});
  EXPECT_FALSE(assertion);
  ASSERT_EQ(result.warnings.size(), 1U);
  EXPECT_EQ(assertion.message(), result.message);
  EXPECT_TRUE(result.message.ends_with("; " + result.warnings[0])) << result.message;
}

}  // namespace
}  // namespace moegrad::gradcheck_test
