// SPDX-License-Identifier: Apache-2.0
// One test for each way in which a function or its backward can fail the check.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "framework/autograd/engine.h"
#include "framework/runtime/grad_mode.h"
#include "tests/framework/autograd/expect_gradcheck.h"
#include "tests/framework/autograd/test_functions.h"
#include "tests/testing.h"

namespace moegrad::gradcheck_failures_test {
namespace {

using enum GradcheckFailure;
using namespace test;
using F = test::GradcheckFunction;

// The identity, which `backward` is the backward of.
F with_backward(const test::Probe::Callback& backward) {
  return [=](const TensorList& in) -> TensorList { return {probe(in[0], "probe", backward)}; };
}

// Two copies of x; what `backward` returns is passed on to x, as by a Function that recomputes.
class Copies final : public Function {
 public:
  using Backward = std::function<Tensor(const TensorList&)>;
  explicit Copies(Backward backward) : backward_(std::move(backward)) {}
  std::string_view name() const override { return "copies"; }
  bool recomputes() const override { return true; }
  TensorList forward(const Tensor& x) { return {clone(x), clone(x)}; }
  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    InputGradientSink(*this, 0)(backward_(grads));
    return {Tensor()};
  }

 private:
  Backward backward_;
};

F copies(const Copies::Backward& backward) {
  return [=](const TensorList& in) { return apply<Copies>(made_with(backward), in[0]); };
}

Tensor sum_of_defined(const TensorList& grads) {
  if (!grads[0].defined()) return clone(grads[1]);
  if (!grads[1].defined()) return clone(grads[0]);
  return zip(grads[0], grads[1], std::plus<>());
}

// y = x w, whose gradient of w is wrong where it is asked for alone.
class WrongAlone final : public Function {
 public:
  std::string_view name() const override { return "wrong_alone"; }
  bool may_wait(std::size_t i) const override { return i == 1; }
  Tensor forward(const Tensor& x, const Tensor& w) {
    x_ = x;
    w_ = w;
    return zip(x, w, std::multiplies<>());
  }
  TensorList backward(const TensorList& grads, InputMask needs) override {
    Tensor grad_w = zip(grads[0], x_.unpack(), std::multiplies<>());
    if (!needs[0]) grad_w = zip(grad_w, grad_w, std::plus<>());
    return {zip(grads[0], w_.unpack(), std::multiplies<>()), grad_w};
  }

 private:
  SavedTensor x_{*this}, w_{*this};
};

TEST(GradcheckFailures, OfAWeightGradientThatWaits) {
  const auto result =
      gradcheck([](const TensorList& in) { return TensorList{apply<WrongAlone>(in[0], in[1])}; },
                {leaf_of({1, 2}), leaf_of({3, 4})});
  EXPECT_EQ(result.kind, kNotReentrant);
}

TEST(GradcheckFailures, JacobianMismatch) {
  const auto wrong = [](const TensorList& in) -> TensorList {
    return {in[0], probe(mul(in[0], in[1]), "wrong", [](const Tensor& grad) -> TensorList {
              return {edited(grad, [](auto g) { g[4] = 0; })};
            })};
  };
  Tensor y = Tensor::full({2, 3}, -4, Dtype::kFloat64);
  expect_failure(wrong, {Tensor::full({2, 3}, 2, Dtype::kFloat64), y.set_requires_grad(true)},
                 kJacobianMismatch,
                 "gradcheck: gradient of output 1 at [1, 1] with respect to input 1 at [1, 1] is 0 "
                 "by backward and 2 by central differences, off by 2 where 2.01e-05 is allowed; 1 "
                 "of 36 elements disagree");
}

TEST(GradcheckFailures, ProjectionThatDisagreesWhereNoElementDoes) {
  constexpr GradcheckOptions wide{.atol = 1e-5, .rtol = 1e-3};
  // Errors of 5e-4 relative, in terms that cancel along the direction that seed 0 draws.
  const auto f = [](const TensorList& in) -> TensorList {
    auto parts = test::halves(probe(in[0], "scales", [](const Tensor& grad) -> TensorList {
      return {edited(grad, [](auto g) {
        g[0] *= 1.0005;
        g[1] *= 0.9995;
      })};
    }));
    return {test::add(parts[0], parts[1])};
  };
  const Tensor x = leaf_of({3, 5});
  EXPECT_TRUE(gradcheck(f, {x}, wide));
  const auto result = gradcheck(f, {x}, {.atol = wide.atol, .rtol = wide.rtol, .fast_mode = true});
  EXPECT_EQ(result.kind, kJacobianMismatch);
  EXPECT_EQ(result.message,
            "gradcheck: a random projection of the gradient of output 0 with respect to input 0 is "
            "-0.210782 by backward and -0.211481 by central differences, off by 0.000699156 where "
            "0.000225464 is allowed, although each element of the Jacobian agrees in full mode");
}

TEST(GradcheckFailures, BackwardThatIsNotReentrant) {
  expect_failure(with_backward([runs = 0](const Tensor& grad) mutable -> TensorList {
                   return {Tensor::full(grad.shape(), ++runs, grad.dtype())};
                 }),
                 {leaf_of({1})}, kNotReentrant,
                 "gradcheck: backward must give the same when it runs twice, but the gradient of "
                 "input 0 at [0] is 1 and then 2, further apart than nondet_tol = 0");
  const auto drifting = with_backward([runs = 0](const Tensor& grad) mutable -> TensorList {
    ++runs;
    return {edited(grad, [&](auto g) { g[0] *= 1 + 1e-9 * runs; })};
  });
  EXPECT_EQ(gradcheck(drifting, {leaf_of({1})}).kind, kNotReentrant);
  expect_success(drifting, {leaf_of({1})}, {.nondet_tol = 1e-8});
}

TEST(GradcheckFailures, GradientOfWrongSize) {
  expect_failure(with_backward([](const Tensor& grad) -> TensorList {
                   return {Tensor::zeros({grad.dim(0), 1}, grad.dtype())};
                 }),
                 {leaf_of({1, 2})}, kGradientSize,
                 "gradcheck: a gradient has the wrong size: probe: gradient of input 0 must be "
                 "[2], got [2, 1]");
  expect_failure(copies([](const TensorList&) { return Tensor::zeros({3}, Dtype::kFloat64); }),
                 {leaf_of({1, 2})}, kGradientSize,
                 "gradcheck: a gradient has the wrong size: that of input 0 must be [2], got [3]");
  // Not taken for the exception of a backward that cannot do without a gradient.
  expect_failure(copies([](const TensorList& grads) {
                   const bool all = grads[0].defined() && grads[1].defined();
                   return all ? sum_of_defined(grads) : Tensor::zeros({3}, Dtype::kFloat64);
                 }),
                 {leaf_of({1, 2})}, kGradientSize,
                 "gradcheck: a gradient has the wrong size: that of input 0 must be [2], got [3]");
}

TEST(GradcheckFailures, GradientOfWrongDtype) {
  expect_failure(with_backward([](const Tensor& grad) -> TensorList {
                   return {to_dtype(grad, Dtype::kFloat32)};
                 }),
                 {leaf_of({1, 2})}, kGradientDtype,
                 "gradcheck: a gradient has the wrong dtype: probe: gradient of input 0 must be "
                 "float64, got float32");
  expect_failure(copies([](const TensorList& grads) {
                   return to_dtype(sum_of_defined(grads), Dtype::kFloat32);
                 }),
                 {leaf_of({1, 2})}, kGradientDtype,
                 "gradcheck: a gradient has the wrong dtype: that of input 0 must be float64, got "
                 "float32");
}

TEST(GradcheckFailures, BackwardThatDoesNotMultiplyByGradOutput) {
  const std::string message =
      "gradcheck: backward must multiply by grad_output: for zeros the gradient of input 0 at [1] "
      "is 0.01";
  const auto plus_constant = with_backward([](const Tensor& grad) -> TensorList {
    return {edited(grad, [](auto g) { g[1] += 0.01; })};
  });
  expect_failure(plus_constant, {leaf_of({1, 2})}, kNotMultipliedByGradOutput, message);
  // Found also where the bound of the Jacobian is too wide to see it.
  expect_failure(plus_constant, {leaf_of({1, 2})}, kNotMultipliedByGradOutput, message,
                 {.atol = 0.1});
}

TEST(GradcheckFailures, UndefinedGradThatBackwardThrowsAt) {
  const auto f = copies([](const TensorList& grads) {
    return zip(grads[0], grads[1], std::plus<>());  // of which either may be undefined
  });
  expect_failure(f, {leaf_of({1, 2})}, kUndefinedGradThrows,
                 "gradcheck: backward must run when the gradient of output 0 is left out, got: "
                 "tensor: undefined tensor used; in the backward of copies");
  expect_success(f, {leaf_of({1, 2})}, {.check_undefined_grad = false});
  expect_success(copies(sum_of_defined), {leaf_of({1, 2})});
}

TEST(GradcheckFailures, UndefinedGradThatGivesANonZeroGradient) {
  const auto f = copies([](const TensorList& grads) {
    const Tensor ones = Tensor::ones({2}, Dtype::kFloat64);
    return grads[1].defined() ? sum_of_defined(grads) : zip(grads[0], ones, std::plus<>());
  });
  expect_failure(
      f, {leaf_of({1, 2})}, kUndefinedGradNotZero,
      "gradcheck: left out, the gradient of output 1 must count as zeros: with zeros for "
      "the others the gradient of input 0 at [0] is 1");
  expect_success(f, {leaf_of({1, 2})}, {.check_undefined_grad = false});
}

TEST(GradcheckFailures, UndefinedGradThatCutsOffTheOthers) {
  const auto f = copies([](const TensorList& grads) {
    const bool all = grads[0].defined() && grads[1].defined();
    return all ? sum_of_defined(grads) : Tensor::zeros({2}, Dtype::kFloat64);
  });
  expect_failure(f, {leaf_of({1, 2})}, kJacobianMismatch,
                 "gradcheck: gradient of output 0 at [0] with respect to input 0 at [0] is 0 by "
                 "backward and 1 by central differences, off by 1 where 1.01e-05 is allowed; 4 of "
                 "8 elements disagree, this one most");
  expect_success(f, {leaf_of({1, 2})}, {.check_undefined_grad = false});
}

// x * x, or what `forward` makes of it, with the operand, or the result, kept as a plain Tensor.
class Keeps final : public Function {
 public:
  enum class What { kRawInput, kRawOutput, kSaved };
  explicit Keeps(What what) : what_(what) {}
  std::string_view name() const override { return "keeps"; }
  Tensor forward(const Tensor& x) {
    raw_ = x;
    saved_ = x;
    if (what_ != What::kRawOutput) return zip(x, x, std::multiplies<>());
    raw_ = edited(x, [](auto values) {
      for (auto& value : values) value = std::exp(value);
    });
    return raw_.detach();
  }
  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    const Tensor kept = what_ == What::kSaved ? saved_.unpack() : raw_;
    const double factor = what_ == What::kRawOutput ? 1.0 : 2.0;
    return {zip(grads[0], kept,
                [&](auto g, auto x) { return static_cast<decltype(g)>(factor) * g * x; })};
  }

 private:
  What what_;
  Tensor raw_;
  SavedTensor saved_{*this};
};

F keeps(Keeps::What what) {
  return [=](const TensorList& in) -> TensorList { return {apply<Keeps>(made_with(what), in[0])}; };
}

TEST(GradcheckFailures, EditThatBackwardDoesNotNotice) {
  const TensorList inputs = {leaf_of({1, 2})};
  const std::string ending =
      " was edited in place before backward, which must throw or give the same gradients, but that "
      "of input 0 at [0] was ";
  const std::string advice = "; keep what backward reads in a SavedTensor, not in a Tensor";
  for (const bool fast : {false, true}) {
    const auto input = gradcheck(keeps(Keeps::What::kRawInput), inputs, {.fast_mode = fast});
    EXPECT_EQ(input.kind, kEditNotNoticed) << input.message;
    EXPECT_TRUE(input.message.starts_with("gradcheck: input 0" + ending)) << input.message;
    EXPECT_TRUE(input.message.ends_with(advice)) << input.message;
    const auto output = gradcheck(keeps(Keeps::What::kRawOutput), inputs, {.fast_mode = fast});
    EXPECT_EQ(output.kind, kEditNotNoticed) << output.message;
    EXPECT_TRUE(output.message.starts_with("gradcheck: output 0" + ending)) << output.message;
  }
  expect_success(keeps(Keeps::What::kSaved), inputs);
  EXPECT_TRUE(test::bitwise_equal(inputs[0].detach(), leaf_of({1, 2}).detach()));
}

// An input without gradient counts as well: a factor, a mask.
TEST(GradcheckFailures, EditOfAConstantThatBackwardDoesNotNotice) {
  const auto f = [](const TensorList& in) -> TensorList {
    const Tensor factor = in[1];
    Tensor scaled = probe(in[0], "scaled", [=](const Tensor& grad) -> TensorList {
      return {zip(grad, factor, std::multiplies<>())};
    });
    return {scaled};
  };
  const auto result = gradcheck(f, {leaf_of({1, 2}), Tensor::ones({2}, Dtype::kFloat64)});
  EXPECT_EQ(result.kind, kEditNotNoticed) << result.message;
  EXPECT_TRUE(result.message.starts_with("gradcheck: input 1 was edited")) << result.message;
}

// x, as long as it has not been moved.
template <class Otherwise>
F unless_moved(const Tensor& x, Otherwise otherwise) {
  return [=, before = clone(x)](const TensorList& in) -> TensorList {
    const Tensor copy =
        probe(in[0], "copy", [](const Tensor& grad) -> TensorList { return {grad}; });
    if (test::bitwise_equal(in[0], before)) return {in[1], copy};
    return otherwise(in[1], copy);
  };
}

TEST(GradcheckFailures, OutputShapeThatChangesUnderPerturbation) {
  const Tensor constant = randn({2}), x = leaf_of({1, 2});
  expect_failure(unless_moved(x,
                              [](const Tensor& first, const Tensor& second) -> TensorList {
                                return {first, Tensor::as_strided(second, {1}, {1}, 0)};
                              }),
                 {x, constant}, kOutputShapeChanges,
                 "gradcheck: output 1 must remain [2] when input 0 moves by eps = 1e-06, got [1]");
  expect_failure(
      unless_moved(x, [](const Tensor& first, const Tensor&) -> TensorList { return {first}; }),
      {x, constant}, kOutputShapeChanges,
      "gradcheck: the function must return the same 2 outputs when input 0 moves by eps = 1e-06, "
      "got 1");
}

TEST(GradcheckFailures, OutputDtypeThatChangesUnderPerturbation) {
  const Tensor constant = randn({2}), x = leaf_of({1, 2});
  expect_failure(
      unless_moved(x,
                   [](const Tensor& first, const Tensor& second) -> TensorList {
                     return {to_dtype(first, Dtype::kFloat32), second};
                   }),
      {x, constant}, kOutputDtypeChanges,
      "gradcheck: output 0 must remain float64 when input 0 moves by eps = 1e-06, got float32");
}

TEST(GradcheckFailures, OutputWithoutGradientThatDependsOnAnInput) {
  const F detached = [](const TensorList& in) -> TensorList {
    return {in[0], mul(in[0], in[1]).detach()};
  };
  const auto message = [](const std::string& input) {
    return "gradcheck: output 1 at [1] requires no gradient, but its derivative with respect to " +
           input + " is ";
  };
  const TensorList inputs = {leaf_of({1, 2}), Tensor::from(std::vector<double>{0, 3}, {2})};
  const auto full = gradcheck(detached, inputs),
             fast = gradcheck(detached, inputs, {.fast_mode = true});
  EXPECT_EQ(full.kind, kNonDifferentiableOutput);
  EXPECT_EQ(full.message, message("input 0 at [1]") + "3 by central differences");
  EXPECT_EQ(fast.kind, kNonDifferentiableOutput);
  EXPECT_EQ(fast.message.rfind(message("input 0"), 0), 0U) << fast.message;
  // An int64 output may be a function of the input, if not of its last bits.
  const auto sign = [](double threshold) -> F {
    return [=](const TensorList& in) -> TensorList {
      const std::int64_t above = in[0].data<double>()[0] > threshold;
      return {in[0], Tensor::from(std::vector<std::int64_t>{above}, {1})};
    };
  };
  expect_success(sign(0.5), {leaf_of({1})});
  const auto flips = gradcheck(sign(1), {leaf_of({1})});
  EXPECT_EQ(flips.kind, kNonDifferentiableOutput);
  EXPECT_EQ(flips.message,
            "gradcheck: output 1 at [0] requires no gradient, but its derivative with respect to "
            "input 0 at [0] is 500000 by central differences");
}

TEST(GradcheckFailures, FunctionThatModifiesAnInput) {
  const F in_place = [](const TensorList& in) -> TensorList {
    Tensor y = in[1];
    y.mutable_data<double>()[0] += 1;
    return {mul(in[0], in[0])};
  };
  const std::string message =
      "gradcheck: input 1 must not be modified in place by the function or its backward";
  expect_failure(in_place, {leaf_of({1, 2}), randn({2})}, kInputModified, message);
  const F in_backward = [](const TensorList& in) -> TensorList {
    return {probe(in[0], "probe", [y = in[1]](const Tensor& grad) mutable -> TensorList {
      y.mutable_data<double>()[0] += 1;
      return {grad};
    })};
  };
  expect_failure(in_backward, {leaf_of({1, 2}), randn({2})}, kInputModified, message);
  const F when_moved = [=](const TensorList& in) { return grad_enabled() ? in : in_place(in); };
  expect_failure(when_moved, {leaf_of({1, 2}), randn({2})}, kInputModified, message);
}

TEST(GradcheckFailures, BackwardThatModifiesItsGradOutput) {
  expect_failure(with_backward([](const Tensor& grad) -> TensorList {
                   Tensor same = grad;
                   same.mutable_data<double>()[0] += 0;
                   return {same};
                 }),
                 {leaf_of({1, 2})}, kGradOutputModified,
                 "gradcheck: grad_output must not be modified in place by backward");
}

// As an embedding that stores where it should add, and leaves out rows of zeros.
TEST(GradcheckFailures, BackwardThatIsNotLinear) {
  const F f = [](const TensorList& in) -> TensorList {
    const auto twice = [](const Tensor& x) {
      return Tensor::from(std::vector<double>{x.item(), x.item()}, {2});
    };
    const auto last = [](const Tensor& grad_output) {
      double sum = 0;
      for (const auto grad : grad_output.data<double>()) sum = grad != 0 ? grad : sum;
      return Tensor::full({1}, sum, Dtype::kFloat64);
    };
    return {unary(in[0], "twice", twice, last)};
  };
  expect_failure(f, {leaf_of({1})}, kNotLinear,
                 "gradcheck: backward must be linear in grad_output: for a random one the gradient "
                 "of input 0 at [0] is 1.40676, but 2.88597 when added up from one backward per "
                 "output element");
}

}  // namespace
}  // namespace moegrad::gradcheck_failures_test
