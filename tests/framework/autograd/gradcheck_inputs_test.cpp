// SPDX-License-Identifier: Apache-2.0
// What may be an input, and what becomes of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/framework/autograd/expect_gradcheck.h"
#include "tests/framework/autograd/test_functions.h"
#include "tests/testing.h"

namespace moegrad::gradcheck_inputs_test {
namespace {

using namespace test;

constexpr GradcheckOptions kFull;
constexpr GradcheckOptions kFast{.atol = kFull.atol, .rtol = kFull.rtol, .fast_mode = true};

TensorList pass_on(const Tensor& grad) { return {grad}; }
TensorList cube(const TensorList& in) { return {mul(mul(in[0], in[0]), in[0])}; }

TEST(GradcheckInputs, LeavesInputsAsTheyWereAndWithoutGradient) {
  using F = test::GradcheckFunction;
  const F throws_when_moved = [calls = 0](const TensorList& in) mutable {
    check(++calls % 3 != 0, "third call");
    return cube(in);
  };
  const F throws_in_backward = [](const TensorList& in) -> TensorList {
    return {mul(in[0], probe(in[0], "late",
                             [](const Tensor&) -> TensorList { throw Error("in backward"); }))};
  };
  const std::vector<std::pair<F, std::string>> throwing = {{throws_when_moved, "third call"},
                                                           {throws_in_backward, "in backward"}};
  const auto wrong = [](const TensorList& in) -> TensorList {
    return {mul(in[0].detach(), in[0])};
  };
  for (const auto& options : {kFull, kFast}) {
    const Tensor x = leaf_of({-0.0, 0.1, 1e-300, -7}), before = clone(x);
    x.set_grad(Tensor::ones({4}, Dtype::kFloat64));
    EXPECT_TRUE(gradcheck(cube, {x}, options));
    EXPECT_TRUE(bitwise_equal(x, before));
    EXPECT_FALSE(x.grad().defined());
    EXPECT_FALSE(gradcheck(wrong, {x}, options));
    EXPECT_TRUE(bitwise_equal(x, before));
    EXPECT_FALSE(x.grad().defined());
    for (const auto& [f, what] : throwing) {
      EXPECT_EQ(message_of<Error>([&, &f = f] { gradcheck(f, {x}, options).or_throw(); }), what);
      EXPECT_TRUE(bitwise_equal(x, before));
      EXPECT_FALSE(x.grad().defined());
    }
  }
}

TEST(GradcheckInputs, LeavesOtherLeavesTheirGradients) {
  const Tensor captured = variable({2}, 2), returned = variable({2}, 3), fresh = variable({2}, 4);
  captured.set_grad(randn({2}, 5));
  returned.set_grad(randn({2}, 6));
  const Tensor grad = captured.grad(), before = clone(grad);
  const auto f = [&](const TensorList& in) -> TensorList {
    return {mul(mul(in[0], captured), fresh), returned};
  };
  EXPECT_TRUE(gradients_agree(f, {variable({2})}));
  EXPECT_TRUE(captured.grad().is(grad));
  EXPECT_TRUE(bitwise_equal(grad, before));
  EXPECT_TRUE(bitwise_equal(returned.grad(), randn({2}, 6)));
  EXPECT_FALSE(fresh.grad().defined());
}

TEST(GradcheckInputs, MovesNonContiguousInputsThroughTheirStrides) {
  Tensor base = randn({24});
  const Tensor before = clone(base);
  Tensor transposed = Tensor::as_strided(base, {3, 2}, {2, 7}, 1);
  transposed.set_requires_grad(true);
  std::vector<double> seen(24);
  const auto f = [&](const TensorList& in) -> TensorList {
    for (std::size_t i = 0; i < seen.size(); ++i) {
      seen[i] = std::max(seen[i], std::abs(base.data<double>()[i] - before.data<double>()[i]));
    }
    const Tensor x = probe(in[0], "x", pass_on);
    return {mul(x, mul(x, in[1]))};
  };
  for (const auto& options : {kFull, kFast}) {
    seen.assign(24, 0);
    EXPECT_TRUE(gradients_agree(f, {transposed, variable({3, 2}, 2)}, options));
    EXPECT_TRUE(bitwise_equal(base, before));
    for (std::size_t i = 0; i < seen.size(); ++i) {
      const bool inside = i == 1 || i == 3 || i == 5 || i == 8 || i == 10 || i == 12;
      EXPECT_EQ(seen[i] > 1e-7, inside) << i;
    }
  }
}

TEST(GradcheckInputs, ATensorGivenTwiceCountsAsOne) {
  const auto f = [](const TensorList& in) -> TensorList { return {mul(in[0], in[1])}; };
  const Tensor x = variable({3});
  for (const auto& options : {kFull, kFast}) EXPECT_TRUE(gradients_agree(f, {x, x}, options));
}

TEST(GradcheckInputs, InputsMayBeCaptured) {
  const Tensor x = variable({3});
  const auto f = [&](const TensorList& /*in*/) -> TensorList { return {mul(x, x)}; };
  for (const auto& options : {kFull, kFast}) EXPECT_TRUE(gradients_agree(f, {x}, options));
}

TEST(GradcheckInputs, IgnoresIntegersAbsentTensorsAndInputsWithoutGradient) {
  const auto f = [](const TensorList& in) -> TensorList { return {mul(in[0], in[1]), in[2]}; };
  for (const auto& options : {kFull, kFast}) {
    EXPECT_TRUE(gradients_agree(
        f, {variable({2}), randn({2}, 2), Tensor::zeros({2}, Dtype::kInt64), Tensor()}, options));
  }
}

TEST(GradcheckInputs, WarnsOfFloat32AndGoesOn) {
  const std::vector<std::string> warnings = {
      "gradcheck: input 1 is float32; eps and the bounds are meant for float64, and will likely "
      "not be kept"};
  const Tensor x = randn({3}, 1, Dtype::kFloat32), y = randn({3}, 2, Dtype::kFloat32, true);
  const auto f = [](const TensorList& in) -> TensorList { return {mul(in[0], in[1])}; };
  for (const bool fast : {false, true}) {
    const auto passed =
        gradcheck(f, {x, y}, {.eps = 1e-2, .atol = 1e-4, .rtol = 1e-4, .fast_mode = fast});
    EXPECT_TRUE(passed) << passed.message;
    EXPECT_EQ(passed.warnings, warnings);
    const auto wrong = gradcheck(
        [](const TensorList& in) -> TensorList {
          return {mul(in[0], in[1].detach()), mul(in[0], in[1])};
        },
        {x, y}, {.eps = 1e-2, .atol = 1e-4, .rtol = 1e-4, .fast_mode = fast});
    EXPECT_EQ(wrong.kind, GradcheckFailure::kNonDifferentiableOutput);
    EXPECT_EQ(wrong.warnings, warnings);
  }
}

// Near 100, float32 is a multiple of 7.6e-6: the elements move by 0.05 % less than 2 eps.
TEST(GradcheckInputs, DividesByTheStepThatFloat32Takes) {
  Tensor x = Tensor::full({2}, 100.3, Dtype::kFloat32);
  x.set_requires_grad(true);
  const auto f = [](const TensorList& in) -> TensorList { return {probe(in[0], "x", pass_on)}; };
  for (const bool fast : {false, true}) {
    const auto result =
        gradcheck(f, {x}, {.eps = 1e-3, .atol = 1e-6, .rtol = 1e-6, .fast_mode = fast});
    EXPECT_TRUE(result) << result.message;
  }
}

// 1e6 + 1e-6 is 1e6 in float32: nothing moves, and nothing must pass for it.
TEST(GradcheckInputs, AnElementThatEpsCannotMoveFails) {
  Tensor x = Tensor::full({2}, 1e6, Dtype::kFloat32);
  x.set_requires_grad(true);
  const auto f = [](const TensorList& in) -> TensorList { return {probe(in[0], "x", pass_on)}; };
  for (const bool fast : {false, true}) {
    EXPECT_EQ(gradcheck(f, {x}, {.fast_mode = fast}).kind, GradcheckFailure::kJacobianMismatch);
  }
}

TEST(GradcheckInputs, RefusesWhatIsNoFunctionToCheck) {
  const auto throwing = [](const TensorList& inputs, const TensorList& outputs) {
    return message_of<Error>(
        [&] { gradcheck([&](const TensorList& /*in*/) { return outputs; }, inputs).or_throw(); });
  };
  const Tensor x = variable({2});
  EXPECT_EQ(throwing({randn({2}), mul(x, x)}, {x}), "gradcheck: input 1 must be a leaf");
  EXPECT_EQ(throwing({x}, {}), "gradcheck: the function must return a tensor");
  EXPECT_EQ(throwing({x}, {x, Tensor()}), "gradcheck: output 1 of the function is undefined");
  Tensor nz = Tensor::empty_nz({16, 16}, {1, 16, 16}, Dtype::kFloat64);
  nz.set_requires_grad(true);
  EXPECT_EQ(throwing({nz}, {x}), "gradcheck: input 0 must be row-major ND, got FRACTAL_NZ");
  const Tensor narrow = randn({2}, 1, Dtype::kBFloat16, true);
  EXPECT_EQ(throwing({narrow}, {x}),
            "gradcheck: input 0 must be float64 or float32, whose steps are fine enough, got "
            "bfloat16");
}

TEST(GradcheckInputs, OneMustRequireAGradient) {
  expect_failure([](const TensorList& in) { return in; }, {randn({2}), Tensor()},
                 GradcheckFailure::kNoInputRequiresGrad, "gradcheck: no input requires a gradient");
}

TEST(GradcheckInputs, MustNotOverlapThemselves) {
  const test::GradcheckFunction f = [](const TensorList& in) { return TensorList{clone(in[1])}; };
  Tensor expanded = Tensor::as_strided(randn({4}), {3, 4}, {0, 1}, 0);
  expanded.set_requires_grad(true);
  expect_failure(f, {randn({1}), expanded}, GradcheckFailure::kOverlappingInput,
                 "gradcheck: elements of input 1 must not share memory, got shape [3, 4] with "
                 "strides [0, 1]; clone it first");
  Tensor sliding = Tensor::as_strided(randn({4}), {3, 2}, {1, 1}, 0);
  expect_failure(f, {randn({1}), sliding.set_requires_grad(true)},
                 GradcheckFailure::kOverlappingInput,
                 "gradcheck: elements of input 1 must not share memory, got shape [3, 2] with "
                 "strides [1, 1]; clone it first");
}

TEST(GradcheckInputs, MustNotOverlapEachOther) {
  const test::GradcheckFunction f = [](const TensorList& in) -> TensorList {
    return {mul(in[0], in[1])};
  };
  const Tensor base = randn({5});
  Tensor low = Tensor::as_strided(base, {3}, {1}, 0), high = Tensor::as_strided(base, {3}, {1}, 2);
  low.set_requires_grad(true);
  expect_failure(f, {high, low}, GradcheckFailure::kOverlappingInput,
                 "gradcheck: inputs 0 and 1 must not share memory; clone one of them first");
  high.set_requires_grad(true);
  expect_failure(f, {high, low}, GradcheckFailure::kOverlappingInput,
                 "gradcheck: inputs 0 and 1 must not share memory; clone one of them first");
  Tensor apart = Tensor::as_strided(base, {2}, {1}, 3);
  expect_success(f, {Tensor::as_strided(low, {2}, {1}, 0).set_requires_grad(true), apart});
}

}  // namespace
}  // namespace moegrad::gradcheck_inputs_test
